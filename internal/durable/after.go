package durable

import (
	"fmt"
	"io"

	"github.com/sandtree/sandtree/internal/durable/pages"
)

// After makes one difference of two: first leads from the parent's record to a
// state between, which was not kept, and p from there to the state of now. Its
// Source reads pages of p from p's source and others from first's; a caller whose
// source has all pages of now may put that in its place.
func (p Pages) After(first Pages) (Pages, error) {
	if p.PID != first.PID {
		return Pages{}, fmt.Errorf("differences of the processes %d and %d", first.PID, p.PID)
	}
	if p.Full {
		return p, nil
	}
	var s [6]pages.Spans
	for i, in := range [][]Span{first.Mapped, first.Gone, first.Changed, p.Mapped, p.Gone, p.Changed} {
		var err error
		if s[i], err = pages.NewSpans(in); err != nil {
			return Pages{}, fmt.Errorf("process %d: %w", p.PID, err)
		}
	}
	mapped1, gone1, changed1, mapped2, gone2, changed2 := s[0], s[1], s[2], s[3], s[4], s[5]
	kept := changed1.Intersect(mapped2).Subtract(gone2).Subtract(changed2)
	return Pages{
		PID: p.PID, Full: first.Full,
		Mapped:  mapped1.Intersect(mapped2),
		Gone:    gone1.Union(gone2),
		Changed: kept.Union(changed2),
		Source:  layered{kept, first.Source, p.Source},
	}, nil
}

// layered reads some spans from one source and all others from another.
type layered struct {
	spans        pages.Spans
	these, other io.ReaderAt
}

// ReadAt implements [io.ReaderAt] for whole pages.
func (l layered) ReadAt(b []byte, at int64) (n int, err error) {
	for n < len(b) && err == nil {
		start := uint64(at) + uint64(n)
		from, end := l.other, start+uint64(len(b)-n)
		for _, s := range l.spans {
			if s.Start <= start && start < s.End {
				from, end = l.these, min(end, s.End)
				break
			}
			if s.Start > start {
				end = min(end, s.Start)
				break
			}
		}
		var got int
		got, err = from.ReadAt(b[n:n+int(end-start)], int64(start))
		n += got
		if got == int(end-start) {
			err = nil
		}
	}
	return n, err
}
