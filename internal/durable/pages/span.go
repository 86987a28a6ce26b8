package pages

import (
	"fmt"
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

// Union joins.
func (s Spans) Union(o Spans) Spans {
	out, err := NewSpans(slices.Concat(s, o))
	if err != nil {
		panic(fmt.Sprintf("spans that were checked: %v", err))
	}
	return out
}

// Intersect keeps what is in both.
func (s Spans) Intersect(o Spans) (out Spans) {
	for i, j := 0, 0; i < len(s) && j < len(o); {
		if start, end := max(s[i].Start, o[j].Start), min(s[i].End, o[j].End); start < end {
			out = append(out, Span{start, end})
		}
		if s[i].End < o[j].End {
			i++
		} else {
			j++
		}
	}
	return out
}

// Subtract keeps what is not in o.
func (s Spans) Subtract(o Spans) (out Spans) {
	j := 0
	for _, a := range s {
		for ; j < len(o) && o[j].End <= a.Start; j++ {
		}
		for k := j; k < len(o) && o[k].Start < a.End; k++ {
			if o[k].Start > a.Start {
				out = append(out, Span{a.Start, o[k].Start})
			}
			a.Start = max(a.Start, o[k].End)
		}
		if a.Start < a.End {
			out = append(out, a)
		}
	}
	return out
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
