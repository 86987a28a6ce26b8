package memory

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Leave queues that a clone of the zygote drops the memory of a process.
func (z *Zygote) Leave(b *tracee.Batch, pid int) {
	for _, e := range z.held(pid) {
		b.Call(unix.SYS_MUNMAP, e.at, e.end-e.start)
	}
}

// Share queues that clones get the memory of a process, or that they do not.
// Without it, each of many children would be cloned with the memory of all.
func (z *Zygote) Share(b *tracee.Batch, pid int, share bool) {
	advice := unix.MADV_DONTFORK
	if share {
		advice = unix.MADV_DOFORK
	}
	for _, e := range z.held(pid) {
		b.Try(unix.SYS_MADVISE, e.at, e.end-e.start, advice) // ENOMEM: done, there are holes
	}
}

// held are the parts of a process's windows in which it has mappings.
func (z *Zygote) held(pid int) (out []extent) {
	vmas := z.vmas[pid]
	for _, e := range z.layout.extents[pid] {
		var s, end uint64
		for i := range vmas {
			if v := &vmas[i]; v.Start >= e.start && v.Start < e.end {
				if s == 0 {
					s = v.Start
				}
				end = v.End
			}
		}
		if s != 0 {
			out = append(out, extent{start: s, end: end, at: e.at + s - e.start})
		}
	}
	return out
}

// Room returns a batch with room for some more calls, running what is queued
// if there is none.
type Room func() (*tracee.Batch, error)

// leaveLender queues that a clone of the zygote drops what it holds of the memory of a
// process, but for what pid has from there.
func (z *Zygote) leaveLender(room Room, lender, pid int) error {
	var keep []span
	for _, m := range z.borrowed[pid] {
		if m.lender == lender {
			at := z.layout.park(lender, m.start)
			keep = append(keep, span{at, at + m.end - m.start})
		}
	}
	for _, e := range z.held(lender) {
		for _, s := range (spans{{e.at, e.parkEnd()}}).less(makeSpans(keep)) {
			b, err := room()
			if err != nil {
				return err
			}
			b.Call(unix.SYS_MUNMAP, s.start, s.end-s.start)
		}
	}
	return nil
}

// Place queues that a clone of the zygote makes this process's memory its own:
// it drops that of the others that it holds, moves what is its own to where it
// belongs, and the kernel's mappings to where p has them.
func (z *Zygote) Place(room Room, p *image.Process, held map[int]bool) error {
	lenders := z.Lenders(p.PID)
	for pid, is := range held {
		if !is || pid == p.PID {
			continue
		}
		if slices.Contains(lenders, pid) {
			if err := z.leaveLender(room, pid, p.PID); err != nil {
				return err
			}
			continue
		}
		b, err := room()
		if err != nil {
			return err
		}
		z.Leave(b, pid)
	}
	// The kernel's mappings first: where they are parked the process may have something.
	at := uint64(vdsoPark)
	for i := range p.Memory.VMAs {
		if v := &p.Memory.VMAs[i]; v.Kind == image.VDSO {
			b, err := room()
			if err != nil {
				return err
			}
			b.Call(unix.SYS_MREMAP, at, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, v.Start)
			at += v.Len()
		}
	}
	ms := z.borrowed[p.PID]
	for i := range z.vmas[p.PID] {
		v := &z.vmas[p.PID][i]
		if len(ms) > 0 && ms[0].start == v.Start {
			if err := z.compose(room, p.PID, v, &ms[0]); err != nil {
				return err
			}
			ms = ms[1:]
			continue
		}
		b, err := room()
		if err != nil {
			return err
		}
		if at := z.layout.park(p.PID, v.Start); at != v.Start {
			b.Call(unix.SYS_MREMAP, at, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, v.Start)
		}
	}
	if err := z.placeRest(room, p); err != nil {
		return err
	}
	for i := range p.Memory.VMAs {
		v := &p.Memory.VMAs[i]
		if v.Shared { // those are not there yet
			continue
		}
		b, err := room()
		if err != nil {
			return err
		}
		Settle(b, v)
	}
	return nil
}

// compose queues that a borrower's mapping is put together where it belongs: it
// is the lender's mapping, with the borrower's own pages laid over it and without
// those that the lender alone has.
func (z *Zygote) compose(room Room, pid int, v *image.VMA, m *borrowed) error {
	b, err := room()
	if err != nil {
		return err
	}
	if at := z.layout.park(m.lender, v.Start); at != v.Start {
		b.Call(unix.SYS_MREMAP, at, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, v.Start)
	}
	own := z.layout.park(pid, v.Start)
	if err := z.overlay(room, v, m, Find(z.vmas[m.lender], v.Start).Prot, v.Start, own); err != nil {
		return err
	}
	if b, err = room(); err != nil {
		return err
	}
	b.Call(unix.SYS_MUNMAP, own, v.Len())
	return nil
}
