package descriptor

import (
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// bucket is what equal descriptions have in common, so that only few pairs
// have to be compared.
type bucket struct {
	dev, ino uint64
	pos      int64
	flags    int
}

// list duplicates the descriptors of a process and groups those that share a
// description.
func (c *Capturer) list(proc int) error {
	p := &c.procs[proc]
	if p.Numbers == nil {
		var err error
		if c.numbers, err = List(p.HostPID, c.numbers[:0]); err != nil {
			return err
		}
	} else {
		c.numbers = append(c.numbers[:0], p.Numbers...)
	}
	table := make([]image.Descriptor, 0, len(c.numbers))
	for i, n := range c.numbers {
		fd, err := unix.PidfdGetfd(p.PIDFD, n, 0)
		if err != nil {
			return fmt.Errorf("descriptor %d of process %d (%s): %w", n, p.PID, p.Comm, exhausted(err))
		}
		at, err := c.add(description{fd: fd, proc: proc, num: n})
		if err != nil {
			return fmt.Errorf("descriptor %d of process %d (%s): %w", n, p.PID, p.Comm, err)
		}
		var cloexec bool
		if p.CloseOnExec != nil {
			cloexec = p.CloseOnExec[i]
		} else if cloexec, err = c.closeOnExec(p.HostPID, n); err != nil {
			return err
		}
		table = append(table, image.Descriptor{Number: n, CloseOnExec: cloexec, File: at})
	}
	c.tables[proc] = table
	return nil
}

// add returns the index of the description that d.fd is a duplicate of.
func (c *Capturer) add(d description) (int, error) {
	if err := c.look(&d); err != nil {
		_ = unix.Close(d.fd)
		return 0, err
	}
	key := bucket{d.stat.Dev, d.stat.Ino, d.pos, d.flags}
	first, ok := c.buckets[key]
	if !ok {
		first = -1
	}
	for i := first; i >= 0; i = c.descriptions[i].next {
		same, err := sameDescription(c.descriptions[i].fd, d.fd)
		if err != nil || same {
			_ = unix.Close(d.fd)
			return i, err
		}
	}
	d.next = first
	c.descriptions = append(c.descriptions, d)
	c.buckets[key] = len(c.descriptions) - 1
	return len(c.descriptions) - 1, nil
}

func (c *Capturer) look(d *description) (err error) {
	if err = unix.Fstat(d.fd, &d.stat); err != nil {
		return fmt.Errorf("fstat: %w", err)
	}
	if d.flags, err = unix.FcntlInt(uintptr(d.fd), unix.F_GETFL, 0); err != nil {
		return fmt.Errorf("F_GETFL: %w", err)
	}
	d.flags &^= unix.O_CLOEXEC // TIOCGPTPEER leaves it there; it says nothing
	if f := d.format(); (f == unix.S_IFREG || f == unix.S_IFDIR) && d.flags&unix.O_PATH == 0 {
		// Where a file cannot seek, 0 is as good.
		d.pos, _ = unix.Seek(d.fd, 0, unix.SEEK_CUR)
	}
	return nil
}

func (c *Capturer) closeOnExec(pid, n int) (bool, error) {
	text, err := c.slurp(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid)+"/fdinfo/"+strconv.Itoa(n), true)
	if err != nil {
		return false, fmt.Errorf("fdinfo of descriptor %d of process %d: %w", n, pid, err)
	}
	s, _ := field(text, "flags")
	flags, err := strconv.ParseUint(s, 8, 32)
	if err != nil {
		return false, fmt.Errorf("fdinfo of descriptor %d of process %d: flags %q: %w", n, pid, s, err)
	}
	return flags&unix.O_CLOEXEC != 0, nil
}

// lookup finds the description that a process has under a number, or -1.
func (c *Capturer) lookup(proc, number int) int {
	t := c.tables[proc]
	i, ok := slices.BinarySearchFunc(t, number, func(d image.Descriptor, n int) int { return d.Number - n })
	if !ok {
		return -1
	}
	return t[i].File
}
