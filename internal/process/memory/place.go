package memory

import (
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

// Place queues that a clone of the zygote which holds no other process's memory
// any more moves this one's to where it belongs, and the kernel's mappings to
// where p has them.
func (z *Zygote) Place(b *tracee.Batch, p *image.Process) {
	for i := range z.vmas[p.PID] {
		v := &z.vmas[p.PID][i]
		if at := z.layout.park(p.PID, v.Start); at != v.Start {
			b.Call(unix.SYS_MREMAP, at, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, v.Start)
		}
	}
	at := uint64(vdsoPark)
	for i := range p.Memory.VMAs {
		v := &p.Memory.VMAs[i]
		if v.Advice&image.DontFork != 0 {
			b.Call(unix.SYS_MADVISE, v.Start, v.Len(), unix.MADV_DONTFORK)
		}
		if v.Advice&image.Locked != 0 {
			b.Call(unix.SYS_MLOCK, v.Start, v.Len())
		}
		if v.Kind == image.VDSO {
			b.Call(unix.SYS_MREMAP, at, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, v.Start)
			at += v.Len()
		}
	}
}
