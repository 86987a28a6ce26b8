package pages

import (
	"slices"

	"github.com/sandtree/sandtree/internal/fault"
)

// Span is a range of addresses, from Start up to but not including End. Both
// are multiples of the page size.
type Span struct{ Start, End uint64 }

// Spans are sorted and apart from each other.
type Spans []Span

// NewSpans sorts and joins spans, which may overlap.
func NewSpans(in []Span) (Spans, error) {
	out := slices.Clone(in)
	for _, s := range out {
		if s.Start >= s.End || s.End > maxAddress || (s.Start|s.End)%PageSize != 0 {
			return nil, fault.New(fault.Invalid, "memory from %#x to %#x", s.Start, s.End)
		}
	}
	slices.SortFunc(out, func(a, b Span) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	n := 0
	for _, s := range out {
		if n > 0 && s.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, s.End)
			continue
		}
		out[n] = s
		n++
	}
	return out[:n], nil
}

// cursor finds the pages of windows that are asked for in order.
type cursor struct {
	spans Spans
	i     int
}

// in is the mask of a window's pages that the spans cover.
func (c *cursor) in(window uint64) (mask uint16) {
	start, end := window*windowSize, (window+1)*windowSize
	for c.i < len(c.spans) && c.spans[c.i].End <= start {
		c.i++
	}
	for i := c.i; i < len(c.spans) && c.spans[i].Start < end; i++ {
		s := c.spans[i]
		from := (max(s.Start, start) - start) / PageSize
		to := (min(s.End, end) - start) / PageSize
		mask |= uint16(1<<to - 1<<from)
	}
	return mask
}

// windows calls visit for each window that has something in the spans, in order.
func (s Spans) windows(visit func(n uint64)) {
	next := uint64(0)
	for _, a := range s {
		for n := max(next, a.Start/windowSize); n*windowSize < a.End; n++ {
			visit(n)
			next = n + 1
		}
	}
}
