package sandbox

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/linux/thread"
	"github.com/sandtree/sandtree/internal/tracee"
)

// keep is an id that setresuid(2) leaves as it is.
const keep = -1

// nextOwner is the user that the next incarnation's user namespace belongs to. The
// kernel counts what the processes of a namespace use of some things (queued
// signals, POSIX message queues, inotify instances, memory in locked segments,
// namespaces) for the namespace's owner too, under the limits of that one: those of
// one owner would share them, and one could use them up for all. Each has another
// user of the family's range, on which nothing else on the host runs; after as many
// incarnations as the range has users they begin anew.
//
// An owner has all capabilities in the namespace, from the one around it
// (user_namespaces(7)). Nothing is there with that id: processes inside are in
// namespaces of their own.
func (s *Seed) nextOwner() uint32 {
	return s.idmap.Host + s.owners.Add(1)%confine.MappedIDs
}

// queueAs makes a stub another effective user, with all capabilities and root's rights to
// files: what is made on the way, as the IPC namespace's message queues, belongs to
// nobody inside. [queueSelf] takes it back.
func queueAs(b *tracee.Batch, user uint32) {
	b.Call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, thread.NoSetuidFixup, 0, 0, 0)
	b.Call(unix.SYS_SETRESUID, keep, user, keep)
	b.Call(unix.SYS_SETFSUID, 0)
}

// queueSelf makes a stub root again, without descriptors.
func queueSelf(b *tracee.Batch) {
	b.Call(unix.SYS_SETRESUID, keep, 0, keep)
	b.Call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 0, 0, 0, 0)
	queueEmpty(b)
}
