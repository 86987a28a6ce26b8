package memory

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/process/image"
)

// leastAhead is how much must have been written, in bytes, to be worth copying
// while the process runs: less is copied in the stop within a millisecond or two. Where
// checkpoints follow one another quickly it is more, since all that is copied ahead
// is protected, and what is written again copied, twice.
const (
	leastAhead      = 4 << 20
	leastAheadAgain = 16 << 20
)

// askDirty is askWritten without protecting anything.
var askDirty = pagemap.Query{Mask: pagemap.Written, Return: pagemap.Present | pagemap.Swapped}

// CopyAhead copies pages that were written since the last scan while the process
// still runs, if there are many, so that the next [Tracker.Scan] and Copy have
// less to do. It returns how many bytes it has copied, and about how many are left, if it
// has copied any.
//
// It is right since each page is protected before it is read: what is written
// later is found by the scan, as after a checkpoint, and is copied once more. What
// became of mappings meanwhile is found there, too: those that are not tracked any
// more are taken whole. Mappings that are new are left to the stop.
//
// The copies stay in the arena for the next Scan, whose delta has them after
// [Delta.Join]. Soon says that the last scan was just before; then there is much only
// where there was much.
func (t *Tracker) CopyAhead(a *Arena, soon bool) (copied, left uint64, err error) {
	if t.full || t.uffd < 0 {
		return 0, 0, nil
	}
	least := uint64(leastAhead)
	if soon {
		if least = leastAheadAgain; t.found < least/2 {
			return 0, 0, nil
		}
	}
	// What is written while it copies is copied once more, as long as that gets
	// less quickly.
	left = ^uint64(0)
	for range 3 {
		found, dirty := t.dirty()
		last := left
		left = dirty
		if dirty < least || dirty > last/2 || !a.Fits(int(dirty)) {
			break
		}
		n, err := t.takeAhead(found, a)
		if copied += n; err != nil {
			return copied, left, err
		}
	}
	return copied, left, nil
}

// dirty are tracked ranges in which much was written since the last scan.
func (t *Tracker) dirty() (found []span, total uint64) {
	for i := range t.vmas {
		v := &t.vmas[i]
		if !Tracks(v) || areaOf(v).file || t.registered(span{v.Start, v.End}) != 0 {
			continue
		}
		parts := spans{{v.Start, v.End}}
		if large(v) {
			if !t.pieces.know(parts[0]) {
				continue
			}
			parts = t.pieces.all.in(parts[0])
		}
		var n uint64
		for _, s := range parts {
			if t.ask(s, askDirty, func(r pagemap.Region) { n += r.End - r.Start }) != 0 {
				n = 0
				break
			}
		}
		if n >= leastAhead/16 {
			found, total = append(found, parts...), total+n
		}
	}
	return found, total
}

// takeAhead protects what was written in some ranges and copies it. If it cannot
// tell what it has protected, or not read it, the next scan takes everything: a
// mapping has gone or was replaced at that moment.
func (t *Tracker) takeAhead(in []span, a *Arena) (copied uint64, err error) {
	var runs []Run
	for _, s := range in {
		e := t.ask(s, askWritten, func(r pagemap.Region) {
			run := Run{Start: r.Start, End: r.End}
			switch {
			case r.Categories&pagemap.Guard != 0:
				run.Guard = true
			case r.Categories&(pagemap.Present|pagemap.Swapped) != 0:
				run.Data = wanted
			}
			runs = append(runs, run)
		})
		if e != 0 {
			t.Forget()
			return 0, nil
		}
	}
	var now []span
	for _, r := range runs {
		now = append(now, span{r.Start, r.End})
	}
	kept := make([]Run, 0, len(t.ahead)+len(runs))
	for newer, i := makeSpans(now), 0; i < len(t.ahead); i++ {
		kept = t.ahead[i].less(newer, kept)
	}
	for i := 0; i < len(runs); i++ {
		r := runs[i]
		if r.Data != nil {
			b, err := a.Alloc(int(r.End - r.Start))
			if err != nil {
				t.Forget()
				return copied, err
			}
			if rest := r.Start + uint64(len(b)); rest < r.End {
				runs = append(runs, Run{Start: rest, End: r.End, Data: wanted})
				r.End = rest
			}
			r.Data = b
			if !t.readRunning(&r) {
				t.Forget()
				return copied, nil
			}
			copied += uint64(len(b))
		}
		kept = append(kept, r)
	}
	t.ahead = kept
	return copied, nil
}

// readRunning copies the pages of a run.
func (t *Tracker) readRunning(r *Run) bool {
	for at := 0; at < len(r.Data); {
		n, err := unix.Pread(t.mem, r.Data[at:], int64(r.Start)+int64(at))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		at += n
	}
	return true
}

// less appends the parts of a run that lie in none of some ranges.
func (r *Run) less(s spans, out []Run) []Run {
	for _, part := range (spans{{r.Start, r.End}}).less(s) {
		out = append(out, r.part(part))
	}
	return out
}

// part is a part of a run.
func (r *Run) part(s span) Run {
	p := Run{Start: s.start, End: s.end, Guard: r.Guard, From: r.From}
	if len(r.Data) > 0 {
		p.Data = r.Data[s.start-r.Start : s.end-r.Start]
	}
	return p
}

// Join adds to the runs what was copied ahead and has not changed since. It is to
// be called once, after the copying; the process may run again.
func (d *Delta) Join() {
	if len(d.ahead) == 0 {
		return
	}
	var now []span
	for _, r := range d.Runs {
		now = append(now, span{r.Start, r.End})
	}
	for i := range d.VMAs { // what is fresh was taken whole, what is not tracked as well
		if v := &d.VMAs[i]; v.Fresh || !Tracks(v) {
			now = append(now, span{v.Start, v.End})
		}
	}
	newer := makeSpans(now)
	for i := range d.ahead {
		for _, r := range d.ahead[i].less(newer, nil) {
			d.Runs = mapped(&r, d.VMAs, d.Runs)
		}
	}
	d.ahead = nil
}

// mapped appends the parts of a run that lie in mappings.
func mapped(r *Run, vmas []image.VMA, out []Run) []Run {
	for at := r.Start; at < r.End; {
		v := Find(vmas, at)
		if v == nil {
			at += pageSize
			continue
		}
		end := min(v.End, r.End)
		out = append(out, r.part(span{at, end}))
		at = end
	}
	return out
}
