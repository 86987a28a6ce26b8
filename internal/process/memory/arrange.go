package memory

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// mappings makes the mappings of one process those of the delta, keeping the
// pages of those that are still the same.
func (u *update) mappings(d *Delta) error {
	z := u.z
	old := z.vmas[d.PID]
	if d.Full && old != nil {
		for i := range old {
			if err := u.call(unix.SYS_MUNMAP, z.layout.park(d.PID, old[i].Start), old[i].Len()); err != nil {
				return err
			}
		}
		delete(z.layout.extents, d.PID)
		delete(z.guards, d.PID)
		old = nil
	}
	// Parts that are gone leave before their windows may be given away.
	for i := range old {
		o := &old[i]
		for _, g := range gaps(o, d.VMAs) {
			if err := u.call(unix.SYS_MUNMAP, z.layout.park(d.PID, g.start), g.end-g.start); err != nil {
				return err
			}
		}
	}
	if err := u.relocate(d, old); err != nil {
		return err
	}
	kept := make([]image.VMA, 0, len(d.VMAs))
	for i := range d.VMAs {
		v := &d.VMAs[i]
		if v.Kind == image.VDSO {
			continue
		}
		kept = append(kept, *v)
		if v.Shared {
			continue
		}
		if err := u.mapping(d.PID, v, old); err != nil {
			return err
		}
	}
	// Shared mappings are made at restore: they have no place here.
	z.vmas[d.PID] = withoutShared(kept)
	return nil
}

func withoutShared(vmas []image.VMA) []image.VMA {
	out := vmas[:0]
	for _, v := range vmas {
		if !v.Shared {
			out = append(out, v)
		}
	}
	return out
}

// keeps reports whether pages of o at some place may stay for v. A tracked mapping that is not
// fresh is the one that stood there at the last scan, with the same file: that may have been renamed or
// deleted since, and its path be another file's.
func keeps(o, v *image.VMA) bool {
	if v.Fresh {
		return false
	}
	if Tracks(o) && Tracks(v) && o.Kind == image.FileBacked && v.Kind == image.FileBacked {
		return o.Offset-o.Start == v.Offset-v.Start
	}
	return sameBacking(o, v)
}

// gaps are the parts of an old mapping that no new one keeps.
func gaps(o *image.VMA, vmas []image.VMA) (out []span) {
	at := o.Start
	vmas = overlapping(vmas, span{o.Start, o.End})
	for i := range vmas {
		v := &vmas[i]
		if v.End <= at || !keeps(o, v) {
			continue
		}
		if v.Start > at {
			out = append(out, span{at, v.Start})
		}
		at = min(v.End, o.End)
	}
	if at < o.End {
		out = append(out, span{at, o.End})
	}
	return out
}

// relocate finds a place for all mappings, and moves what is in the way.
func (u *update) relocate(d *Delta, old []image.VMA) error {
	private := make([]image.VMA, 0, len(d.VMAs))
	for _, v := range d.VMAs {
		if !v.Shared {
			private = append(private, v)
		}
	}
	moves, err := u.z.layout.fit(d.PID, private)
	if err != nil {
		return err
	}
	for _, m := range moves {
		vmas := u.z.vmas[m.pid]
		if m.pid == d.PID {
			vmas = old
		}
		for i := range vmas {
			for _, k := range keptParts(&vmas[i], m.pid == d.PID, d.VMAs) {
				if k.start < max(m.old.start, m.new.start) || k.start >= min(m.old.end, m.new.end) {
					continue
				}
				l := k.end - k.start
				if err := u.call(unix.SYS_MREMAP, m.old.at+k.start-m.old.start, l, l,
					unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, m.new.at+k.start-m.new.start); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// keptParts is what is still there of an old mapping after its gaps left.
func keptParts(o *image.VMA, changed bool, vmas []image.VMA) []span {
	if !changed {
		return []span{{o.Start, o.End}}
	}
	var out []span
	at := o.Start
	for _, g := range gaps(o, vmas) {
		if g.start > at {
			out = append(out, span{at, g.start})
		}
		at = g.end
	}
	if at < o.End {
		out = append(out, span{at, o.End})
	}
	return out
}
