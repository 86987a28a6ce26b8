package memory

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// mapping makes the parts of one mapping that are new, and sets the protection
// of those that are kept.
func (u *update) mapping(pid int, v *image.VMA, old []image.VMA) error {
	at := v.Start
	if !v.Fresh {
		old = overlapping(old, span{v.Start, v.End})
		for i := range old {
			o := &old[i]
			if !keeps(o, v) {
				continue
			}
			if o.Start > at {
				if err := u.add(pid, v, at, o.Start); err != nil {
					return err
				}
			}
			s := max(o.Start, at)
			at = min(o.End, v.End)
			if o.Advice != v.Advice {
				if err := u.advise(u.z.layout.park(pid, s), at-s, o.Advice, v.Advice); err != nil {
					return err
				}
			}
			if o.Prot != v.Prot {
				if err := u.call(unix.SYS_MPROTECT, u.z.layout.park(pid, s), at-s, v.Prot); err != nil {
					return err
				}
			}
		}
	}
	if at < v.End {
		return u.add(pid, v, at, v.End)
	}
	return nil
}

// add maps a part of a mapping anew.
func (u *update) add(pid int, v *image.VMA, start, end uint64) error {
	to := u.z.layout.park(pid, start)
	flags := unix.MAP_PRIVATE | unix.MAP_FIXED
	switch v.Kind { // the place is free, or what stood there is left behind
	case image.FileBacked:
		fd, err := u.open(pid, v)
		if err != nil {
			return err
		}
		if len(u.sent) == maxFiles || u.batch.Full(8, 64) {
			if err := u.flush(); err != nil {
				_ = unix.Close(fd)
				return err
			}
		}
		if err := u.mapFile(fd, to, end-start, v.Prot, flags, v.Offset+start-v.Start); err != nil {
			return err
		}
		return u.advise(to, end-start, 0, v.Advice)
	case image.Stack:
		return u.call(unix.SYS_MMAP, to, end-start, v.Prot, flags|unix.MAP_ANONYMOUS|unix.MAP_GROWSDOWN, -1, 0)
	}
	flags |= unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if v.Advice&image.GrowsDown != 0 {
		flags |= unix.MAP_GROWSDOWN
	}
	if v.Advice&image.Droppable != 0 {
		const mapDroppable = 0x08
		flags = flags&^unix.MAP_TYPE | mapDroppable
	}
	if err := u.call(unix.SYS_MMAP, to, end-start, v.Prot, flags, -1, 0); err != nil {
		return err
	}
	return u.advise(to, end-start, 0, v.Advice)
}

// advise gives a mapping the advice that survives the zygote's forks. A fork
// wipes memory that is to be wiped, so that a restored process finds it zero.
func (u *update) advise(at, size uint64, old, now image.Advice) error {
	for _, a := range lasting {
		what := a.on
		switch {
		case (old^now)&a.bit == 0 || now&image.Droppable != 0 && a.bit&(image.WipeOnFork|image.DontDump) != 0: // which it always is
			continue
		case now&a.bit == 0:
			what = a.off
		}
		if what == 0 || what == unix.MADV_NORMAL && now&(image.Sequential|image.Random) != 0 {
			continue // no call takes it back, or another one replaces it
		}
		if err := u.call(unix.SYS_MADVISE, at, size, what); err != nil {
			return err
		}
	}
	return nil
}

// mapFile queues the mapping of a file of ours, whose descriptor it takes over.
// Sent files have the numbers 0, 1, … in the zygote.
func (u *update) mapFile(fd int, to, size uint64, prot, flags int, offset uint64) error {
	u.sent = append(u.sent, fd)
	return u.call(unix.SYS_MMAP, to, size, prot, flags, len(u.sent)-1, offset)
}
