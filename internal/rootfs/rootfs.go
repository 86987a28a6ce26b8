// Package rootfs defines how the files of sandboxes are kept: what a store of
// root file systems does, and the words for it. Package overlay implements it
// on overlayfs over a btrfs, package pool makes and grows that btrfs, and
// package rootfstest is the suite that every implementation passes.
package rootfs

import (
	"context"
	"os"
)

// Store keeps the file states of one family's sandboxes.
//
// # Words
//
//   - A layer is a read-only tree, shared by all sandboxes. A store is opened
//     with an ordered set of them, the topmost first.
//   - An upper is what one incarnation has changed over the layers. It is
//     writable and mounted at most once.
//   - A snapshot is an upper of one instant. It never changes.
//   - A root is the mount that an incarnation lives in: an upper over the layers.
//   - A quota counts the bytes of several uppers and snapshots and bounds them.
//
// Uppers and snapshots are named by ids of the caller's (see [ValidID]) in one
// space of names. An id that was removed must not be used again.
//
// # Lifecycle
//
//	             CreateUpper                    Clone
//	(nothing) ───────────────► upper ◄──────────────────────── snapshot
//	                             │ │            Snapshot           ▲
//	                  MountRoot  │ └───────────────────────────────┘
//	                             ▼
//	                            root (a descriptor; the caller's)
//
// An upper goes on living after [Store.Snapshot]: nothing of it moves, no
// descriptor, mapping or working directory in its root changes, and no later
// write reaches the snapshot. That is why a checkpoint is a snapshot, and a
// rollback is a clone of it with a root of its own, beside which the old one
// dies. Snapshots do not depend on the uppers they came from, or on each
// other: any may be removed at any time.
//
// # A worked example
//
// A sandbox is created with a limit of 10 GiB, checkpointed, rolled back and
// forked:
//
//	q, _ := s.NewQuota(10 << 30)
//	s.CreateUpper("sb-a.0", q)
//	root, _ := s.MountRoot("sb-a.0")       // boot an incarnation in it
//
//	s.Presync()                            // the tree still runs
//	s.Hold()
//	…stop the tree, capture it…
//	s.Snapshot("sb-a.0", "cp-1")
//	…resume the tree…
//	s.Release()
//
//	s.Clone("cp-1", "sb-a.1", q)           // rollback: same sandbox, same quota
//	root, _ = s.MountRoot("sb-a.1")
//	s.Discount("sb-a.0")                   // it counts until it is freed
//	…end the old incarnation…
//	s.Remove("sb-a.0")
//
//	q2, _ := s.NewQuota(10 << 30)          // fork: another sandbox
//	s.Clone("cp-1", "sb-b.0", q2)
//
// # Errors
//
// Errors are of package fault: Invalid for a malformed id, NotFound and Exists
// for ids, Conflict for an upper that is mounted already or a snapshot where
// an upper is needed, Exhausted when the store or a quota is full, Unsupported
// when the kernel lacks something, Internal for the rest. An operation that
// fails leaves nothing behind.
//
// # Concurrency
//
// All methods may be called at the same time. Snapshot takes no lock that
// another upper's operation holds for long, and does nothing but what its
// instant needs.
type Store interface {
	// NewQuota makes a quota. limit is in bytes; 0 counts without bounding.
	NewQuota(limit int64) (Quota, error)
	// SetQuota changes a quota's limit. One below what is held refuses
	// further writes and takes nothing away.
	SetQuota(q Quota, limit int64) error
	// QuotaUsage reports what a quota's uppers and snapshots hold.
	QuotaUsage(q Quota) (Usage, error)
	// Recount makes an upper count in another quota than the one it was made
	// with: with all that it holds, and with the snapshots that are taken of
	// it from then on.
	Recount(upper string, q Quota) error
	// Discount has what only an upper holds, and no snapshot of it, not count against
	// the quota's limit any more, though it does until it is freed: for an upper that is
	// about to be removed, so that what takes its place has its room at once. Remove
	// does the same. undo has it count again. An upper without a limit is let be.
	Discount(upper string) (undo func(), err error)
	// DropQuota forgets a quota once the last of its members is freed.
	DropQuota(q Quota) error

	// CreateUpper makes an empty upper. The zero Quota counts nowhere.
	CreateUpper(id string, q Quota) error
	// MountRoot mounts an upper over the layers and returns the root as a
	// detached mount, writable; the caller closes it. Ids inside are those
	// of the user namespace the store was opened with. Each upper is mounted
	// once; one that an earlier process left behind may be mounted again.
	MountRoot(upper string) (fd int, err error)

	// Presync writes dirty data back, so that a snapshot soon after it takes
	// only what was written since. It refuses with Exhausted when the store
	// has no room left for a checkpoint, before anything was stopped.
	Presync() error
	// Flush does as much for one upper alone, where a snapshot was made just before:
	// little has changed since then but its data. What it writes is not counted
	// yet.
	Flush(upper string) error
	// Snapshot makes a snapshot of an upper that may be mounted. The caller
	// has stopped the writers, if the instant matters.
	Snapshot(upper, snapshot string) error
	// Hold keeps background work (deletions) from starting until Release is
	// called as often. Neither blocks or allocates.
	Hold()
	// Release ends one Hold.
	Release()

	// Content opens the directory that holds what an upper or a snapshot has over the
	// layers, in overlayfs's own format and with ids as they are inside. That of
	// a snapshot is read, to keep it elsewhere; that of an upper which was just
	// created, and was not mounted yet, may be filled with what was kept. The
	// caller closes it.
	Content(id string) (*os.File, error)

	// Clone makes an upper from a snapshot.
	Clone(snapshot, upper string, q Quota) error
	// Remove deletes an upper or snapshot. It returns at once: the id is
	// refused from then on, and the space is freed in the background, at a
	// pace that others do not feel. Files and mounts that are open in it stay
	// as they are, and keep the space until they are closed.
	Remove(id string) error

	// Layers is the number of layers.
	Layers() int
	// LayerFD returns a detached mount of layer i (0 is the topmost), ids
	// mapped as in a root. Files opened under it belong to no root, so what
	// maps them pins no upper. The caller closes it.
	LayerFD(i int) (fd int, err error)
	// SnapshotFD is LayerFD for the files of a snapshot that differ from the
	// layers.
	SnapshotFD(snapshot string) (fd int, err error)
	// Resolve finds the real file that a path in a root made from snapshot
	// shows ("" for a root that changed nothing), and opens it for reading.
	// The path is absolute, and resolved already: a symbolic link in it, or
	// at its end, is not followed. NotFound if there is none.
	Resolve(snapshot, path string) (Location, *os.File, error)

	// PathOf finds the path in an upper's root of the file that a handle of the
	// root's file system stands for, as inotify(7) shows it in
	// /proc/PID/fdinfo or name_to_handle_at(2) gives it. Below a directory that
	// was renamed it may be the path that the file had before, or in a store
	// of several layers that of another file: the caller looks whether the path
	// shows the file. NotFound if it has no name.
	PathOf(upper string, typ int32, handle []byte) (string, error)

	// Diff lists the paths that differ from a to b, sorted; either may be a
	// snapshot or an upper, whose state of now is meant.
	Diff(ctx context.Context, a, b string) ([]Change, error)
	// Usage is the number of bytes that were written in an upper and are
	// still held, by it or by a snapshot; or that a snapshot holds which
	// were written in itself (few). See Quota for a sandbox's sum.
	Usage(id string) (int64, error)
	// List names everything in the store, sorted by id.
	List() ([]Entry, error)

	// Close stops background work and releases the store's descriptors. What
	// was removed and not yet freed is freed by the next store opened there.
	// No other method may be running, or be called afterwards; roots that are
	// mounted live on.
	Close() error
}

// Quota names a quota of one store. The zero value is none.
type Quota uint64

// Usage is what a quota holds, in bytes. Limit 0 is none.
type Usage struct {
	Bytes int64
	Limit int64
}

// Upper is the value of [Location.Layer] for a file that is in the snapshot
// itself.
const Upper = -1

// Location says where the real file behind a path lies.
type Location struct {
	// Layer is the layer's index, or [Upper].
	Layer int
	// Path is relative to the layer's or the snapshot's root. It differs from
	// the path in the root below a directory that was renamed.
	Path string
}

// Kind says how a path differs.
type Kind string

// The kinds of change.
const (
	Added    Kind = "A"
	Modified Kind = "M"
	Deleted  Kind = "D"
)

// Change is one path that differs.
type Change struct {
	// Path is absolute, in the root.
	Path string
	Kind Kind
}

// Entry is an upper or a snapshot in a store.
type Entry struct {
	ID       string
	Snapshot bool
}
