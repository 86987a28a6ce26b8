package memory

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// A program may map far more than it uses: the shadow memory of a sanitizer takes 16 TiB,
// or nearly all that there is, and a zygote holds many programs. So of a very
// large mapping it has those units alone in which there are pages, each as a
// mapping of its own. The rest is made at restore, where nothing else is.
const (
	vastSize = 64 << 30
	vastUnit = 16 << 30
)

// vast reports whether a zygote holds only parts of a mapping.
func vast(v *image.VMA) bool {
	return v.Kind == image.Anonymous && !v.Shared && v.Len() >= vastSize && v.Advice&(image.GrowsDown|image.Droppable) == 0
}

// thin returns a delta as the zygote takes it: with the units that it is to have of
// vast mappings in their place. A unit that it has stays while the mapping does,
// so that what is of it is known by its bounds.
func (z *Zygote) thin(d *Delta) *Delta {
	if !slices.ContainsFunc(d.VMAs, func(v image.VMA) bool { return vast(&v) }) {
		return d
	}
	t := *d
	t.VMAs = make([]image.VMA, 0, len(d.VMAs)+16)
	for i := range d.VMAs {
		v := &d.VMAs[i]
		if !vast(v) {
			t.VMAs = append(t.VMAs, *v)
			continue
		}
		for _, s := range z.units(d, v) {
			u := *v
			u.Start, u.End = s.start, s.end
			t.VMAs = append(t.VMAs, u)
		}
	}
	t.Runs = make([]Run, 0, len(d.Runs))
	for _, r := range d.Runs {
		if r.Data != nil || r.From != 0 || r.Guard {
			t.Runs = append(t.Runs, r)
			continue
		}
		for _, v := range overlapping(t.VMAs, span{r.Start, r.End}) { // the zygote has nothing elsewhere
			t.Runs = append(t.Runs, Run{Start: max(r.Start, v.Start), End: min(r.End, v.End)})
		}
	}
	return &t
}

// spansOf are the addresses of mappings, each for itself.
func spansOf(vmas []image.VMA) spans {
	out := make(spans, len(vmas))
	for i := range vmas {
		out[i] = span{vmas[i].Start, vmas[i].End}
	}
	return out
}

// units are the parts of a vast mapping that the zygote is to have, by address.
func (z *Zygote) units(d *Delta, v *image.VMA) spans {
	var used []span
	unit := func(s span) {
		s = span{s.start &^ (vastUnit - 1), (s.end + vastUnit - 1) &^ (vastUnit - 1)}
		for at := max(s.start, v.Start&^(vastUnit-1)); at < min(s.end, v.End); at += vastUnit {
			if n := len(used); n == 0 || used[n-1].start != at {
				used = append(used, span{at, at + vastUnit})
			}
		}
	}
	for _, r := range d.Runs {
		if r.Start < v.End && r.End > v.Start && (r.Data != nil || r.From != 0 || r.Guard) {
			unit(span{max(r.Start, v.Start), min(r.End, v.End)})
		}
	}
	if !d.Full && !v.Fresh {
		for _, o := range overlapping(z.vmas[d.PID], span{v.Start, v.End}) {
			if sameBacking(&o, v) {
				unit(span{max(o.Start, v.Start), min(o.End, v.End)})
			}
		}
	}
	slices.SortFunc(used, func(a, b span) int { return compareStarts(a.start, b.start) })
	used = slices.Compact(used)
	stub := spans{{tracee.StubStart, tracee.StubEnd}}
	out := make(spans, 0, len(used))
	for _, s := range used {
		s = span{max(s.start, v.Start), min(s.end, v.End)}
		out = append(out, spans{s}.less(stub)...) // no page is there, or it would have been refused
	}
	return out
}

func compareStarts(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// placeRest queues that the parts of vast mappings are mapped that the zygote does not have. What
// is its own must stand where it belongs already.
func (z *Zygote) placeRest(room Room, p *image.Process) error {
	for i := range p.Memory.VMAs {
		v := &p.Memory.VMAs[i]
		if !vast(v) {
			continue
		}
		held := spansOf(overlapping(z.vmas[p.PID], span{v.Start, v.End}))
		held = makeSpans(append(held, span{tracee.StubStart, tracee.StubEnd}))
		for _, s := range (spans{{v.Start, v.End}}).less(held) {
			b, err := room()
			if err != nil {
				return err
			}
			b.Call(unix.SYS_MMAP, s.start, s.end-s.start, v.Prot, unix.MAP_PRIVATE|unix.MAP_FIXED|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
			for _, a := range Advised(v) {
				b.Call(unix.SYS_MADVISE, s.start, s.end-s.start, a)
			}
		}
	}
	return nil
}

// Advised are the calls of madvise(2) by which anonymous memory that is mapped anew gets the advice of a
// mapping.
func Advised(v *image.VMA) (out []int) {
	for _, a := range lasting {
		if v.Advice&a.bit != 0 {
			out = append(out, a.on)
		}
	}
	if v.Advice&image.DontFork != 0 {
		out = append(out, unix.MADV_DONTFORK)
	}
	return out
}

// Behind are the parts of a process's mappings that belong where the stub is, and can be made
// only when that has left. No pages are there.
func Behind(vmas []image.VMA) (out []image.VMA) {
	for i := range vmas {
		if v := vmas[i]; v.Start < tracee.StubEnd && v.End > tracee.StubStart {
			v.Start, v.End = max(v.Start, tracee.StubStart), min(v.End, tracee.StubEnd)
			out = append(out, v)
		}
	}
	return out
}

// Yields reports whether a mapping gives way to a stub where both belong: all that a stub needs is of
// it, nobody may access it, and it is so large that it is not held as a whole.
func Yields(v *image.VMA) bool {
	return vast(v) && v.Prot == unix.PROT_NONE && v.Advice&image.Locked == 0 &&
		v.Start <= tracee.StubStart && v.End >= tracee.StubEnd
}

// beside is a mapping without what is where an area is while its process stands.
func beside(v *image.VMA) spans {
	all := spans{{v.Start, v.End}}
	if v.Start < tracee.StubEnd && v.End > tracee.StubStart {
		return all.less(spans{{tracee.StubStart, tracee.StubEnd}})
	}
	return all
}

// Empty reports whether a process has no pages of its own in a range: none in memory, swapped out or
// to guard.
func (t *Tracker) Empty(start, end uint64) (bool, error) {
	entries := make([]uint64, (end-start)/pageSize)
	if err := pagemap.Entries(t.pagemap, start, entries); err != nil {
		return false, err
	}
	const there = 1<<63 | 1<<62 | 1<<58 // present, swapped, guard (proc_pid_pagemap(5))
	return !slices.ContainsFunc(entries, func(e uint64) bool { return e&there != 0 }), nil
}
