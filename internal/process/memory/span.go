package memory

import (
	"cmp"
	"slices"
	"sort"
)

// span is a range of addresses.
type span struct{ start, end uint64 }

// spans are ranges by address that do not touch each other.
type spans []span

// makeSpans sorts ranges, which may overlap, and joins those that touch. It
// takes over the slice.
func makeSpans(in []span) spans {
	byStart := func(a, b span) int { return cmp.Compare(a.start, b.start) }
	if !slices.IsSortedFunc(in, byStart) {
		slices.SortFunc(in, byStart)
	}
	out := in[:0]
	for _, s := range in {
		if n := len(out); n > 0 && s.start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, s.end)
		} else if s.start < s.end {
			out = append(out, s)
		}
	}
	return out
}

func (a spans) size() (n uint64) {
	for _, s := range a {
		n += s.end - s.start
	}
	return n
}

// from is the index of the first range that ends above addr.
func (a spans) from(addr uint64) int {
	return sort.Search(len(a), func(i int) bool { return a[i].end > addr })
}

// in is the part of a that lies in s.
func (a spans) in(s span) (out spans) {
	for i := a.from(s.start); i < len(a) && a[i].start < s.end; i++ {
		out = append(out, span{max(a[i].start, s.start), min(a[i].end, s.end)})
	}
	return out
}

// and is what lies in both.
func (a spans) and(b spans) (out spans) {
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if s, e := max(a[i].start, b[j].start), min(a[i].end, b[j].end); s < e {
			out = append(out, span{s, e})
		}
		if a[i].end < b[j].end {
			i++
		} else {
			j++
		}
	}
	return out
}

// less is what lies in a and not in b.
func (a spans) less(b spans) (out spans) {
	for _, s := range a {
		at := s.start
		for i := b.from(at); i < len(b) && b[i].start < s.end; i++ {
			if b[i].start > at {
				out = append(out, span{at, b[i].start})
			}
			at = max(at, b[i].end)
		}
		if at < s.end {
			out = append(out, span{at, s.end})
		}
	}
	return out
}
