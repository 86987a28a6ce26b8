package growth

import (
	"maps"
	"slices"
	"strings"
)

// Growth is how one time grows between the beginning and the end of an axis.
type Growth struct {
	Name string `json:"name"`
	// From and To are the medians of the first and of the last third of the
	// places, in milliseconds; Ratio is To through From.
	From  float64 `json:"from_ms"`
	To    float64 `json:"to_ms"`
	Ratio float64 `json:"ratio"`
	// Stage is the one that grows most, if stages are known, and StageFrom
	// and StageTo what it takes.
	Stage     string  `json:"stage,omitempty"`
	StageFrom float64 `json:"stage_from_ms,omitempty"`
	StageTo   float64 `json:"stage_to_ms,omitempty"`
}

// Allowed is how much a time may grow along an axis that is meant to be flat.
const Allowed = 1.5

// compare compares the ends of a curve, for each time.
func compare(c Curve) []Growth {
	var all []Growth
	for _, name := range names(c.Points, func(p Point) map[string]float64 { return p.MS }) {
		g := Growth{Name: name}
		var ok bool
		if g.From, g.To, ok = ends(c.Points, func(p Point) (float64, bool) { v, ok := p.MS[name]; return v, ok }); !ok || g.From == 0 {
			continue
		}
		g.Ratio = g.To / g.From
		prefix := name + "/"
		if name == "checkpoint_frozen" {
			prefix = "checkpoint/"
		}
		for _, stage := range names(c.Points, func(p Point) map[string]float64 { return p.StageMS }) {
			short, mine := strings.CutPrefix(stage, prefix)
			if !mine || name == "checkpoint_frozen" && short == "zygotes" { // after the resume
				continue
			}
			from, to, ok := ends(c.Points, func(p Point) (float64, bool) { v, ok := p.StageMS[stage]; return v, ok })
			if ok && to-from > g.StageTo-g.StageFrom {
				g.Stage, g.StageFrom, g.StageTo = short, from, to
			}
		}
		all = append(all, g)
	}
	return all
}

func names(points []Point, of func(Point) map[string]float64) []string {
	seen := map[string]bool{}
	for _, p := range points {
		for name := range of(p) {
			seen[name] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// ends are the medians of the first and the last third of the values.
func ends(points []Point, of func(Point) (float64, bool)) (from, to float64, ok bool) {
	var values []float64
	for _, p := range points {
		if v, ok := of(p); ok {
			values = append(values, v)
		}
	}
	if len(values) < 2 {
		return 0, 0, false
	}
	n := max(len(values)/3, 1)
	return median(values[:n]), median(values[len(values)-n:]), true
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[(len(s)-1)/2]
}
