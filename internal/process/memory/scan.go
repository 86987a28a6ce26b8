package memory

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/linux/uffd"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Questions that the scan asks.
var (
	// What was written since the last time? Protect it again.
	askWritten = pagemap.Query{Flags: pagemap.Protect | pagemap.Check, Mask: pagemap.Written, Return: pagemap.Present | pagemap.Swapped}
	// Which pages are the process's own: present and not the file's.
	askPresent = pagemap.Query{Invert: pagemap.File | pagemap.ZeroPage, Mask: pagemap.Present | pagemap.File | pagemap.ZeroPage, Return: pagemap.Present}
	askSwapped = pagemap.Query{Invert: pagemap.File, Mask: pagemap.Swapped | pagemap.File, Return: pagemap.Swapped}
)

// Scan finds the private pages that changed since the last scan and protects
// them again, so that the next write to each is seen. Refresh must have been
// called in this stop. Runs are appended to d without data; see [Tracker.Copy].
//
// A mapping that is not registered is a new one, moved, grown by mremap(2), or
// stands where an old one stood: all its own pages count as changed and it is
// marked fresh. Only the check of registration tells a mapping that was replaced
// at the same address from the old one. It is asked before the scan that
// protects: that one protects pages before it fails and reports none of them.
func (t *Tracker) Scan(d *Delta) error {
	d.PID, d.VMAs, d.Full = t.pid, t.vmas, t.full
	for i := range t.vmas {
		t.vmas[i].Fresh = false
	}
	t.found = 0
	add := func(r pagemap.Region) {
		run := Run{Start: r.Start, End: r.End}
		t.found += r.End - r.Start
		switch {
		case r.Categories&pagemap.Guard != 0:
			run.Guard = true
		case r.Categories&(pagemap.Present|pagemap.Swapped) != 0:
			run.Data = wanted
		}
		d.Runs = append(d.Runs, run)
	}
	if err := t.scanTracked(add); err != nil {
		return err
	}
	t.pieces.keep(t.vmas)
	for i := range t.vmas {
		v := &t.vmas[i]
		switch {
		case Tracks(v) && large(v):
			if err := t.scanLarge(v, add); err != nil {
				return err
			}
		case untracked(v):
			// What is not there any more is not reported: all of it is gone,
			// and what is there comes back.
			for _, s := range beside(v) {
				add(pagemap.Region{Start: s.start, End: s.end})
				if err := t.own(s, add); err != nil {
					return err
				}
			}
		}
	}
	for i := range t.ahead {
		t.found += t.ahead[i].End - t.ahead[i].Start
	}
	d.ahead, t.ahead = t.ahead, nil
	t.full = false
	return nil
}

// wanted marks a run whose pages are to be copied.
var wanted = []byte{}

func (t *Tracker) scanTracked(add func(pagemap.Region)) error {
	if t.full {
		t.copies = nil
		for i := range t.vmas {
			if v := &t.vmas[i]; Tracks(v) && !large(v) {
				if err := t.begin(v, add); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, g := range t.groups {
		if err := t.scanGroup(g, add); err != nil {
			return err
		}
	}
	return nil
}

// scanGroup asks one question of all runs of a group, and each by itself if one is not
// registered.
func (t *Tracker) scanGroup(g []area, add func(pagemap.Region)) error {
	whole := span{g[0].start, g[len(g)-1].end}
	all := t.registered(whole)
	if all != 0 && all != unix.EPERM {
		return t.scanError(whole, all)
	}
	for _, s := range g {
		e := all
		if e != 0 && len(g) > 1 {
			e = t.registered(s.span)
		}
		var err error
		switch e {
		case 0:
			err = t.written(s, add)
		case unix.EPERM:
			err = t.scanEach(s.span, add)
		default:
			err = t.scanError(s.span, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanEach goes through the mappings of a run of which one is not registered.
func (t *Tracker) scanEach(s span, add func(pagemap.Region)) error {
	vmas := overlapping(t.vmas, s)
	for i := range vmas {
		v := &vmas[i]
		if v.Start < s.start || v.End > s.end {
			continue
		}
		one := span{v.Start, v.End}
		switch e := t.registered(one); e {
		case 0:
			if err := t.written(areaOf(v), add); err != nil {
				return err
			}
		case unix.EPERM:
			if err := t.begin(v, add); err != nil {
				return err
			}
		default:
			return t.scanError(one, e)
		}
	}
	return nil
}

// begin starts the tracking of a mapping and takes all its own pages.
func (t *Tracker) begin(v *image.VMA, add func(pagemap.Region)) error {
	v.Fresh = true
	// Protection leaves marks where no page is, which the kernel reports like
	// swapped pages: a large mapping that is nearly empty would be captured
	// whole. So pages are looked for before it, and old marks are taken away.
	if t.full && t.registered(span{v.Start, v.End}) == 0 {
		if e := uffd.Unregister(t.uffd, v.Start, v.End); e != 0 {
			return fmt.Errorf("begin anew to track process %d at %#x-%#x: %w", t.pid, v.Start, v.End, e)
		}
	}
	if err := t.own(span{v.Start, v.End}, add); err != nil {
		return err
	}
	return t.protect(areaOf(v), t.scratch.regions)
}

// protect registers a run of mappings and write-protects it.
func (t *Tracker) protect(a area, regions []pagemap.Region) error {
	if e := uffd.Register(t.uffd, a.start, a.end); e != 0 {
		return fmt.Errorf("track writes of process %d to %#x-%#x: %w", t.pid, a.start, a.end, e)
	}
	return t.protectPages(a, regions)
}

// protectPages write-protects what is registered.
func (t *Tracker) protectPages(a area, regions []pagemap.Region) error {
	if !a.file {
		if e := pagemap.ProtectAll(t.pagemap, a.start, a.end); e != 0 {
			return t.scanError(a.span, e)
		}
		return nil
	}
	var copies []span
	e := pagemap.Scan(t.pagemap, a.start, a.end, askCopies, regions, func(r pagemap.Region) {
		copies = append(copies, span{r.Start, r.End})
	})
	if e != 0 {
		return t.scanError(a.span, e)
	}
	t.setCopies(a.span, copies)
	return nil
}

// Protect does the long part of [Tracker.Begin] beforehand, as soon as the
// mappings are in place. It may run on another thread, beside all but the
// tracker's own methods; what is written meanwhile counts as changed.
func (t *Tracker) Protect(restored []image.VMA) error {
	regions := make([]pagemap.Region, 256)
	for _, s := range runs(restored) {
		if err := t.protect(s, regions); err != nil {
			return err
		}
		t.protected = append(t.protected, s)
	}
	return t.protectLarge(restored, regions)
}

// protectLarge begins to track the large mappings that are not tracked yet.
func (t *Tracker) protectLarge(vmas []image.VMA, regions []pagemap.Region) error {
	for i := range vmas {
		v := &vmas[i]
		whole := span{v.Start, v.End}
		if !Tracks(v) || !large(v) || t.pieces.know(whole) {
			continue
		}
		if err := t.beginLarge(areaOf(v), regions); err != nil {
			return err
		}
	}
	return nil
}

// own reports the pages of a range that are the process's own.
func (t *Tracker) own(s span, add func(pagemap.Region)) error {
	for _, q := range []pagemap.Query{askPresent, askSwapped} {
		if e := t.ask(s, q, add); e != 0 {
			return t.scanError(s, e)
		}
	}
	return nil
}

func (t *Tracker) ask(s span, q pagemap.Query, out func(pagemap.Region)) unix.Errno {
	if q.Return&pagemap.Swapped != 0 && pagemap.ReportsGuards() {
		q.Return |= pagemap.Guard
	}
	return pagemap.Scan(t.pagemap, s.start, s.end, q, t.scratch.regions, out)
}

// registered reports whether writes to all mappings in a range are tracked: EPERM if not.
func (t *Tracker) registered(s span) unix.Errno {
	return pagemap.Registered(t.pagemap, s.start, s.end)
}

func (t *Tracker) scanError(s span, e unix.Errno) error {
	return fmt.Errorf("scan pages %#x-%#x of process %d: %w", s.start, s.end, t.pid, e)
}

// Begin starts tracking in a process that was just restored with the given
// mappings, so that the next scan finds what it wrote since then. The mappings
// are read anew; their advice is what they were restored with.
func (t *Tracker) Begin(restored []image.VMA) error {
	n, err := t.readMaps()
	if err != nil {
		return err
	}
	t.advice = map[uint64]image.Advice{}
	t.advised = append(t.advised[:0], t.text[:n]...)
	now, err := ParseMaps(t.text[:n])
	if err != nil {
		return fmt.Errorf("process %d: %w", t.pid, err)
	}
	for i := range now { // a vast one may be several now
		if v := Find(restored, now[i].Start); v != nil && v.Advice != 0 {
			t.advice[now[i].Start] = v.Advice
		}
	}
	t.origins.learn(now, restored)
	if err := t.take(now, n); err != nil {
		return err
	}
	for _, s := range t.tracked { // whole runs of mappings: calls are what it costs
		if slices.Contains(t.protected, s) {
			continue
		}
		if err := t.protect(s, t.scratch.regions); err != nil {
			return err
		}
	}
	t.full, t.protected = false, nil
	return t.protectLarge(t.vmas, t.scratch.regions)
}
