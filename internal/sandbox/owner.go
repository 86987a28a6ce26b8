package sandbox

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/tracee"
)

// secbitNoSetuidFixup keeps the capabilities of a process that changes its user ids
// (SECBIT_NO_SETUID_FIXUP, capabilities(7)).
const secbitNoSetuidFixup = 1 << 2

// keep is an id that setresuid(2) leaves as it is.
const keep = -1

// nextOwner is the user that the next incarnation's user namespace belongs to. The
// kernel counts what the processes of a namespace use of some things (queued
// signals, POSIX message queues, inotify instances, memory in locked segments,
// namespaces) for the namespace's owner too, under the limits of that one: those of
// one owner would share them, and one could use them up for all. Each has another
// user of the family's range, on which nothing else on the host runs.
//
// An owner has all capabilities in the namespace, from the one around it
// (user_namespaces(7)). Nothing is there with that id: processes inside are in
// namespaces of their own.
func (s *Seed) nextOwner() uint32 {
	return s.idmap.Host + s.owners.Add(1)%confine.MappedIDs
}

// queueAs runs what queue queues as another effective user, with all capabilities.
// [queueSelf] has to follow where the batch fails.
func queueAs(b *tracee.Batch, user uint32, queue func()) {
	b.Call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secbitNoSetuidFixup, 0, 0, 0)
	b.Call(unix.SYS_SETRESUID, keep, user, keep)
	queue()
	queueSelf(b)
}

// queueSelf makes the seed root again.
func queueSelf(b *tracee.Batch) {
	b.Call(unix.SYS_SETRESUID, keep, 0, keep)
	b.Call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 0, 0, 0, 0)
}
