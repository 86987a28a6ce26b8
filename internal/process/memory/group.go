package memory

import "github.com/sandtree/sandtree/internal/process/image"

// groups puts runs together between which there is no mapping of another kind: of all of
// them is asked at once whether they are registered, since a program with many libraries
// has a hundred runs, and the calls are most of what the question costs.
func groups(runs []area, vmas []image.VMA) (out [][]area) {
	for i, from := 1, 0; i <= len(runs); i++ {
		if i == len(runs) || !adjoin(runs[i-1], runs[i], vmas) {
			out = append(out, runs[from:i])
			from = i
		}
	}
	return out
}

// adjoin reports whether nothing is mapped between two runs. Those that are far from each
// other are not asked: what a stop maps for its own use may be there.
func adjoin(a, b area, vmas []image.VMA) bool {
	const far = 1 << 30
	return b.start-a.end < far && len(overlapping(vmas, span{a.end, b.start})) == 0
}
