package descriptor

import (
	"bytes"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// examineLocks refuses files that are locked through a captured description
// or by its process. It asks the fdinfo of each: reading /proc/locks makes the
// kernel wait for a grace period of RCU, 10 ms and more.
func (c *Capturer) examineLocks() error {
	for p := range c.tables {
		for _, t := range c.tables[p] {
			d := &c.descriptions[t.File]
			if !c.lockable(d) {
				continue
			}
			if err := c.refuseLocked(p, t.Number, d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Capturer) lockable(d *description) bool {
	return d.flags&unix.O_PATH == 0 && (d.kind.name() == image.Regular || d.kind.name() == image.Directory || d.kind.name() == image.FIFO)
}

// refuseLocked refuses the description that a process has under a number if
// there is a lock of it. The process's own table is asked, since POSIX locks
// belong to the table.
func (c *Capturer) refuseLocked(proc, number int, d *description) error {
	p := &c.procs[proc]
	text, err := c.slurp(unix.AT_FDCWD, "/proc/"+strconv.Itoa(p.HostPID)+"/fdinfo/"+strconv.Itoa(number))
	if err != nil {
		return fmt.Errorf("fdinfo of descriptor %d of process %d: %w", number, p.PID, err)
	}
	kind, ok := field(text, "lock")
	if !ok {
		return nil
	}
	at := *d
	at.proc, at.num = proc, number
	return c.refuse(&at, fmt.Sprintf("the file %s with a lock (%s)", d.file.Path, lockName(kind)), "release the lock or end the process")
}

// lockName is the kind of lock of a line of fdinfo, such as
// "1: FLOCK  ADVISORY  WRITE 4321 00:2b:17 0 EOF".
func lockName(line string) string {
	if f := bytes.Fields([]byte(line)); len(f) > 3 {
		return string(f[1]) + " " + string(f[3])
	}
	return line
}
