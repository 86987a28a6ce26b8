package memory

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/process/image"
)

type remoteSpan = procmem.Span

// Copy copies the pages of all runs that want it into the arena.
//
// A full capture reads /proc/PID/mem: process_vm_readv(2) pins pages, and
// pinning would make those that are shared by fork the process's own. Pages
// that were written since the last checkpoint are its own already, unless it
// has forked since. It also refuses memory that the process itself may not read.
func (t *Tracker) Copy(d *Delta, a *Arena) error {
	c := copier{t: t}
	for i := 0; i < len(d.Runs); i++ {
		r := &d.Runs[i]
		if r.Data == nil {
			continue
		}
		b, err := a.Alloc(int(r.End - r.Start))
		if err != nil {
			return err
		}
		if rest := r.Start + uint64(len(b)); rest < r.End { // the chunk ended: the rest is a run of its own
			d.Runs = append(d.Runs, Run{Start: rest, End: r.End, Data: wanted})
			r = &d.Runs[i]
			r.End = rest
		}
		r.Data = b
		v := Find(t.vmas, r.Start)
		if v == nil {
			return fmt.Errorf("page %#x of process %d is in no mapping", r.Start, t.pid)
		}
		if d.Full || v.Fresh || d.Forked || v.Prot&unix.PROT_READ == 0 {
			err = t.readMem(r)
		} else {
			err = c.add(r)
		}
		if err != nil {
			return err
		}
	}
	return c.flush()
}

func (t *Tracker) readMem(r *Run) error {
	for at := 0; at < len(r.Data); {
		n, err := unix.Pread(t.mem, r.Data[at:], int64(r.Start)+int64(at))
		if err == unix.EINTR {
			continue
		}
		if err == unix.EIO {
			return t.unreadable(r.Start + uint64(at))
		}
		if err != nil || n == 0 {
			return fmt.Errorf("read %#x-%#x of process %d: %d bytes: %w", r.Start, r.End, t.pid, at, err)
		}
		at += n
	}
	return nil
}

// unreadable refuses a page that is there and cannot be read, not even past its
// protection. Guard pages (Linux 6.13) are reported like swapped ones by kernels
// that do not tell them apart.
func (t *Tracker) unreadable(addr uint64) error {
	return fault.New(fault.Uncapturable, "process %d has guard pages (MADV_GUARD_INSTALL) or broken memory at %#x, which a checkpoint cannot keep", t.pid, addr).
		WithHint("end it, then try again")
}

// copier gathers runs for process_vm_readv.
type copier struct {
	t   *Tracker
	n   int
	sum int
}

func (c *copier) add(r *Run) error {
	s := c.t.scratch
	s.local[c.n] = unix.Iovec{Base: &r.Data[0], Len: uint64(len(r.Data))}
	s.remote[c.n] = remoteSpan{Addr: r.Start, Len: uint64(len(r.Data))}
	c.sum += len(r.Data)
	if c.n++; c.n == len(s.local) {
		return c.flush()
	}
	return nil
}

func (c *copier) flush() error {
	if c.n == 0 {
		return nil
	}
	s := c.t.scratch
	got, e := procmem.ReadV(c.t.host, s.local[:c.n], s.remote[:c.n])
	if e == unix.EFAULT || e == 0 && got < c.sum {
		got = max(got, 0)
		for _, r := range s.remote[:c.n] {
			if got < int(r.Len) {
				return c.t.unreadable(r.Addr + uint64(got))
			}
			got -= int(r.Len)
		}
	}
	if e != 0 || got != c.sum {
		return fmt.Errorf("copy %d bytes of process %d: only %d: %w", c.sum, c.t.pid, got, e)
	}
	c.n, c.sum = 0, 0
	return nil
}

// sameBacking reports whether two mappings of one place show the same thing at
// it, so that pages of the first may be kept for the second.
func sameBacking(a, b *image.VMA) bool {
	if a.Shared != b.Shared || a.Kind != b.Kind {
		return false
	}
	if a.Kind == image.Anonymous || a.Kind == image.Stack {
		return true
	}
	return a.Path == b.Path && a.Deleted == b.Deleted && a.Offset-a.Start == b.Offset-b.Start
}
