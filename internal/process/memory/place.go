package memory

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Leave queues that a clone of the zygote drops the memory of a process.
func (z *Zygote) Leave(b *tracee.Batch, pid int) {
	es := z.layout.extents[pid]
	vmas := z.vmas[pid]
	for _, e := range es {
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
			b.Call(unix.SYS_MUNMAP, e.at+s-e.start, end-s)
		}
	}
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
