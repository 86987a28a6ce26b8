package descriptor

import (
	"bytes"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// examineLocks refuses files that are locked through a captured description
// or by its process. /proc/locks is read once; fdinfo, which is exact, only
// for files whose inode number is in it.
func (c *Capturer) examineLocks() error {
	files := false
	for i := range c.descriptions {
		files = files || c.lockable(&c.descriptions[i])
	}
	if !files {
		return nil
	}
	text, err := c.slurp(unix.AT_FDCWD, "/proc/locks")
	if err != nil {
		return fmt.Errorf("locks: %w", err)
	}
	if len(text) == 0 {
		return nil
	}
	locked := lockedInodes(text)
	for p := range c.tables {
		for _, t := range c.tables[p] {
			d := &c.descriptions[t.File]
			if !c.lockable(d) || !locked[d.stat.Ino] {
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

// lockedInodes are the inode numbers in the text of /proc/locks (proc(5)).
func lockedInodes(text []byte) map[uint64]bool {
	m := map[uint64]bool{}
	for line := range bytes.Lines(text) {
		for _, f := range bytes.Fields(line) {
			if bytes.Count(f, []byte{':'}) != 2 {
				continue
			}
			if n, err := strconv.ParseUint(string(f[bytes.LastIndexByte(f, ':')+1:]), 10, 64); err == nil {
				m[n] = true
			}
		}
	}
	return m
}
