package tracee

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// childRoom is how many operations a forked child may have. One that forks nobody
// takes only as much room as it has operations.
const childRoom = 512

// End is what a forked child does after its operations, or when one of them
// has failed.
type End uint32

// How a child ends its batch. Exit has status 125; a child that serves says
// hello on its control socket first.
const (
	EndExit  End = 2
	EndServe End = 1
	EndPark  End = 4
)

// CloneArgs is struct clone_args of clone3(2). Pointers are addresses in the
// target.
type CloneArgs struct {
	Flags, PIDFD, ChildTID, ParentTID, ExitSignal, Stack, StackSize, TLS uint64
	// SetTID are the numbers that the child gets, innermost namespace first
	// (Linux 5.5; needs CAP_CHECKPOINT_RESTORE there).
	SetTID []int32
	// Cgroup is a descriptor in the target, with CLONE_INTO_CGROUP.
	Cgroup uint64
}

const cloneArgsSize = 88

// PutCloneArgs stores the structure in the data area.
func (b *Batch) PutCloneArgs(a CloneArgs) Ptr {
	var set, n uint64
	if len(a.SetTID) > 0 {
		p := make([]byte, 0, 4*len(a.SetTID))
		for _, t := range a.SetTID {
			p = append(p, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
		}
		set, n = uint64(b.Put(p)), uint64(len(a.SetTID))
	}
	return b.PutWords(a.Flags, a.PIDFD, a.ChildTID, a.ParentTID, a.ExitSignal,
		a.Stack, a.StackSize, a.TLS, set, n, a.Cgroup)
}

// Clone3 queues a clone whose child goes its own way: it is traced, or returns
// to where its registers point.
func (b *Batch) Clone3(a CloneArgs) Ref {
	return b.Call(unix.SYS_CLONE3, b.PutCloneArgs(a), cloneArgsSize)
}

// Fork queues a clone whose child goes on by itself with the calls that f
// queues, and ends as told. It returns the child's batch too, whose results
// can be read where the child shares the memory of its parent.
func (b *Batch) Fork(a CloneArgs, end End, f func(child *Batch)) (Ref, *Batch) {
	c := &Batch{
		area: b.area, base: b.kids.next, data: b.data,
		kids: b.kids, outputs: b.outputs, err: b.err,
	}
	b.kids.next += childRoom * opSize
	if b.kids.next > b.area.ChildEnd {
		b.fail(fmt.Errorf("batch forks %d children, for which it has no room", len(b.kids.all)+1))
	}
	b.kids.all = append(b.kids.all, c)
	reserved := b.kids.next
	f(c)
	if b.kids.next == reserved { // it forks nobody: the room that it did not need is the next one's
		b.kids.next = c.base + uint64(len(c.ops))*opSize
	}
	return b.add(flagFork, unix.SYS_CLONE3, []any{
		b.PutCloneArgs(a), cloneArgsSize, nil, nil,
		c.base, uint64(len(c.ops)) | uint64(end)<<32,
	}), c
}

// Err returns the error of the call that ended a child's batch, or nil, where
// the child shared its parent's memory. Of other batches it is what Do
// returned.
func (b *Batch) Err() error { return b.firstError() }
