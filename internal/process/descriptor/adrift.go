package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// A description that is on its way in a socket may be adrift: open in no process. It has
// its locks and its owner all the same, and who receives it has them.

// examineAdriftLocks finds the locks of descriptions that are adrift. The information on
// our duplicates tells of them; locks of processes (F_SETLK) end when a process closes a file.
func (c *Capturer) examineAdriftLocks() error {
	var held []bool
	for i := range c.descriptions {
		d := &c.descriptions[i]
		if !d.carried || !c.lockable(d) {
			continue
		}
		if held == nil {
			held = heldIn(c.tables, len(c.descriptions))
		}
		if held[i] {
			continue
		}
		text, err := c.info(d)
		if err != nil {
			return err
		}
		locks, strange := parseLocks(text)
		if strange != "" {
			return c.refuse(d, fmt.Sprintf("the file %s with a lock (%s)", d.file.Path, strange), "release the lock or end the process")
		}
		d.file.Locks = locks
	}
	return nil
}

// heldIn tells which of n files are in a table.
func heldIn(tables [][]image.Descriptor, n int) []bool {
	held := make([]bool, n)
	for _, t := range tables {
		for _, d := range t {
			held[d.File] = true
		}
	}
	return held
}

// CompleteAdrift has a process give descriptions that are in none of the tables what
// [Opened.Complete] gives others. It comes before that: the process closes them, which would give up its
// own locks of the same files. Control is the number of its control socket.
func (o *Opened) CompleteAdrift(run func(Installation) error, control int, tables [][]image.Descriptor) error {
	var held []bool
	in := newInstaller(control+1+spareNumbers, run)
	for i, f := range o.files {
		if o.fd[i] < 0 || f.Owner == 0 && f.OwnerSignal == 0 && len(f.Locks) == 0 {
			continue
		}
		if held == nil {
			held = heldIn(tables, len(o.files))
		}
		if held[i] {
			continue
		}
		if err := o.withAdrift(&in, control, i, func(b *tracee.Batch, got tracee.Ref) { queueOwner(b, got, f) }); err != nil {
			return err
		}
		for _, l := range f.Locks {
			if err := o.withAdrift(&in, control, i, func(b *tracee.Batch, got tracee.Ref) { queueLock(b, got, l) }); err != nil {
				return err
			}
		}
	}
	return in.flush()
}

// withAdrift queues that a process has a file for a moment.
func (o *Opened) withAdrift(in *installer, control, file int, queue func(b *tracee.Batch, got tracee.Ref)) error {
	if err := in.room(); err != nil {
		return err
	}
	in.receive(control, o.fd[file], func(got tracee.Ref) {
		queue(in.Batch, got)
		in.Batch.Call(unix.SYS_CLOSE, got)
	})
	return nil
}
