package memory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
)

// Window is a part of a process's address space and where it stands in a zygote.
type Window struct {
	Start, End uint64 // in the process
	At         uint64 // of Start, in the zygote
}

// Windows are the parts that the zygote holds of a process's private memory: all
// of its mappings, by address. What processes share stands at one place. They
// are valid until the next Update.
func (z *Zygote) Windows(pid int) (out []Window) {
	vmas, loans := z.vmas[pid], z.loans[pid]
	for i := range vmas {
		v := &vmas[i]
		at := v.Start
		for _, l := range within(loans, span{v.Start, v.End}) {
			if l.start > at {
				out = append(out, Window{at, l.start, z.layout.park(pid, at)})
			}
			out = append(out, Window{l.start, l.end, z.layout.park(l.lender, l.start)})
			at = l.end
		}
		if at < v.End {
			out = append(out, Window{at, v.End, z.layout.park(pid, at)})
		}
	}
	return out
}

// Own calls f for the runs of pages of a process that are its own: there, and
// not a file's, those that it shares with other processes as well. Guard pages
// are not. Addresses are the process's, in ascending order.
func (z *Zygote) Own(pid int, f func(start, end uint64)) error {
	path := fmt.Sprintf("/proc/%d/pagemap", z.server.PID())
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var own []span
	for _, l := range z.loans[pid] {
		own = append(own, l.span)
	}
	buf := make([]pagemap.Region, 1<<10)
	for i := range z.vmas[pid] {
		v := &z.vmas[pid][i]
		at := z.layout.park(pid, v.Start)
		for _, q := range []pagemap.Query{askPresent, askSwapped} {
			e := pagemap.Scan(fd, at, at+v.Len(), q, buf, func(r pagemap.Region) {
				own = append(own, span{r.Start - at + v.Start, r.End - at + v.Start})
			})
			if e != 0 {
				return fmt.Errorf("look for the pages of process %d in its zygote: %w", pid, e)
			}
		}
	}
	var guards []span // reported like swapped pages
	z.Guards(pid, func(start, end uint64) { guards = append(guards, span{start, end}) })
	for _, s := range makeSpans(own).less(makeSpans(guards)) {
		f(s.start, s.end)
	}
	return nil
}

// Guards calls f for the runs of guard pages of a process.
func (z *Zygote) Guards(pid int, f func(start, end uint64)) {
	for _, g := range z.guards[pid] {
		vmas := overlapping(z.vmas[pid], g) // some have gone with their mapping
		for i := range vmas {
			v := &vmas[i]
			if lo, hi := max(g.start, v.Start), min(g.end, v.End); lo < hi {
				f(lo, hi)
			}
		}
	}
}

// OpenMemory opens the zygote's memory, to be read at the addresses that
// [Zygote.Windows] tells. Once the zygote has ended, nothing is read from it.
func (z *Zygote) OpenMemory() (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/%d/mem", z.server.PID()))
}

// MappedFiles returns a function that opens the file which a private mapping of a
// process shows at an address: a layer's or a snapshot's, or an anonymous copy
// of one that no path led to.
func (z *Zygote) MappedFiles() (open func(pid int, addr uint64) (*os.File, error), err error) {
	vmas, err := z.actual()
	if err != nil {
		return nil, err
	}
	return func(pid int, addr uint64) (*os.File, error) {
		v := Find(vmas, z.layout.park(pid, addr))
		if v == nil {
			return nil, fmt.Errorf("the zygote has no mapping for %#x of process %d", addr, pid)
		}
		return os.Open(z.mapFile(v))
	}, nil
}
