// Package chunkstore keeps chunks in pack files in a directory, for any number
// of processes at once.
//
//	packs/NAME.pack            packs in use
//	condemned/ROUND/NAME.pack  packs that are about to be deleted
//	condemned/ROUND/held       leases that were held when they were condemned
//	leases/NAME                see package lease
//	tmp/LEASE.N                files that are not finished
//
// A [Session] writes chunks into packs in tmp and moves them into packs when
// all are on the disk. A pack never changes; what it holds is known from its
// index, which is read when the store first sees the pack.
//
// # Collection
//
// A pack must not be deleted while somebody relies on it: a reader of a record
// that was just removed, or a writer that found a chunk in it and has not
// published its record yet. Both hold a lease. [Store.Collect] therefore takes
// two steps. It condemns packs by moving them aside, and notes which leases are
// held right then. Condemned packs can be read, but a session that begins later
// does not take a chunk of theirs for kept. When none of the noted leases is
// held any more, what records need is looked at once more: a pack of which
// something is needed moves back, and the others are deleted. All that this
// knows is in the directories, so a collection that is killed is gone on with by
// the next.
//
// Lock order: Session.mu, Store.mu.
package chunkstore
