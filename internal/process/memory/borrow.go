package memory

import (
	"slices"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/process/image"
)

// leastShared is how many bytes a mapping must share to be kept as one that
// shares: for less, the calls at restore cost more than the memory is worth.
const leastShared = 16 * pageSize

// Borrow finds which of the pages that are to be copied are, as physical pages,
// also another process's at the same address, as fork(2) leaves them, and makes
// them runs without data that name it. Only mappings that are new in this
// capture are looked at: what was captured before only ever parts.
//
// Each mapping shares with one lender at most, the one it has the most pages in
// common with, and only if that is at least half of what it has: the other half
// is copied at each restore. All processes must stand; it must come after the
// [Tracker.Scan] of this process and before any process's [Tracker.Copy].
func (t *Tracker) Borrow(d *Delta, lenders []*Tracker) error {
	if len(lenders) == 0 || !d.anyFresh() {
		return nil
	}
	runs := make([]Run, 0, len(d.Runs))
	for i := 0; i < len(d.Runs); {
		v := Find(d.VMAs, d.Runs[i].Start)
		j := i + 1
		for v != nil && j < len(d.Runs) && d.Runs[j].Start >= v.Start && d.Runs[j].End <= v.End {
			j++
		}
		group := d.Runs[i:j]
		i = j
		if v == nil || !v.Fresh || !lendable(v) {
			runs = append(runs, group...)
			continue
		}
		from, shared, err := t.lenderOf(v, group, lenders)
		if err != nil {
			return err
		}
		if from == nil {
			runs = append(runs, group...)
			continue
		}
		for _, r := range group {
			if r.Data == nil {
				runs = append(runs, r)
				continue
			}
			whole := spans{{r.Start, r.End}}
			both := shared.in(whole[0])
			for _, s := range both {
				runs = append(runs, Run{Start: s.start, End: s.end, From: from.pid})
			}
			for _, s := range whole.less(both) {
				runs = append(runs, Run{Start: s.start, End: s.end, Data: wanted})
			}
		}
	}
	d.Runs = runs
	return nil
}

func (d *Delta) anyFresh() bool {
	for i := range d.VMAs {
		if d.VMAs[i].Fresh {
			return true
		}
	}
	return false
}

// borrows reports whether pages are found to be another process's.
func (d *Delta) borrows() bool {
	return slices.ContainsFunc(d.Runs, func(r Run) bool { return r.From != 0 })
}

// lenderOf finds who shares most of the pages of some runs of one mapping, and
// which; nil if that is not worth it.
func (t *Tracker) lenderOf(v *image.VMA, runs []Run, lenders []*Tracker) (best *Tracker, shared spans, err error) {
	var want uint64
	for _, r := range runs {
		if r.Data != nil {
			want += r.End - r.Start
		}
	}
	if want < leastShared {
		return nil, nil, nil
	}
	most := max(leastShared, want/2) - 1
	for _, l := range lenders {
		lv := Find(l.vmas, v.Start)
		if lv == nil || !covers(lv, v) || lv.Dev != v.Dev || lv.Ino != v.Ino {
			continue
		}
		var both []span
		for _, r := range runs {
			if r.Data == nil {
				continue
			}
			if both, err = t.common(l, r, both); err != nil {
				return nil, nil, err
			}
		}
		if s := makeSpans(both); s.size() > most {
			best, shared, most = l, s, s.size()
		}
		if most > want-want/16 {
			break
		}
	}
	return best, shared, nil
}

// common appends the pages of a run that both processes have in the same
// physical pages.
func (t *Tracker) common(l *Tracker, r Run, out []span) ([]span, error) {
	mine, theirs := t.scratch.frames[0][:], t.scratch.frames[1][:]
	for at := r.Start; at < r.End; {
		n := min(int((r.End-at)/pageSize), len(mine))
		if err := pagemap.Entries(t.pagemap, at, mine[:n]); err != nil {
			return nil, err
		}
		if err := pagemap.Entries(l.pagemap, at, theirs[:n]); err != nil {
			return nil, err
		}
		for i := range n {
			if f := pagemap.Frame(mine[i]); f == 0 || f != pagemap.Frame(theirs[i]) {
				continue
			}
			s := span{at + uint64(i)*pageSize, at + uint64(i+1)*pageSize}
			if k := len(out); k > 0 && out[k-1].end == s.start {
				out[k-1].end = s.end
			} else {
				out = append(out, s)
			}
		}
		at += uint64(n) * pageSize
	}
	return out, nil
}

// lendable reports whether a mapping may show pages of another process's
// window: not a stack, which grows, nor one with advice that a fork of the
// window would meet, nor one that is held in parts.
func lendable(v *image.VMA) bool {
	return Tracks(v) && !vast(v) && (v.Kind == image.Anonymous || v.Kind == image.FileBacked) &&
		v.Advice&(image.WipeOnFork|image.DontFork|image.Locked|image.Droppable) == 0
}

// covers reports whether the lender's mapping has a place for all of a
// borrower's: it must become one mapping again at restore.
func covers(lender, v *image.VMA) bool {
	return lender.Start <= v.Start && lender.End >= v.End && lender.Advice == v.Advice &&
		lendable(lender) && lendable(v) && sameBacking(lender, v)
}
