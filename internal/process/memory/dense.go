package memory

import "sort"

const hugePage = 2 << 20

// Scattered writes split the huge pages of a base, which makes each fork of it
// and each restore slower. Regions that one checkpoint wrote densely are put
// into huge pages again: there it costs little memory, since most of it was
// written anyway. Where writes are scattered it would cost much and help little.
const (
	// denseBytes written in one checkpoint make a region worth a huge page.
	denseBytes = hugePage / 2
	// denseRegions is how many are made huge at one checkpoint that were not
	// written in whole, each at about the cost of copying it.
	denseRegions = 16
)

// dense counts the bytes written in a zygote by the region of a huge page.
type dense map[uint64]uint64

// note counts a range that lies in a mapping of which a huge page must not be
// more than a part.
func (d dense) note(s span, mapping, size uint64) {
	for at := s.start; at < s.end; {
		region := at &^ (hugePage - 1)
		end := min(s.end, region+hugePage)
		if region >= mapping && region+hugePage <= mapping+size {
			d[region] += end - at
		}
		at = end
	}
}

// worth are the regions that are to be huge: all that were written in whole, and
// a few others, the densest.
func (d dense) worth() (out []span) {
	var some []uint64
	for region, n := range d {
		switch {
		case n >= hugePage:
			out = append(out, span{region, region + hugePage})
		case n >= denseBytes:
			some = append(some, region)
		}
	}
	sort.Slice(some, func(i, j int) bool {
		if a, b := d[some[i]], d[some[j]]; a != b {
			return a > b
		}
		return some[i] < some[j]
	})
	for _, region := range some[:min(len(some), denseRegions)] {
		out = append(out, span{region, region + hugePage})
	}
	return makeSpans(out)
}
