package memory

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sandtree/sandtree/internal/process/image"
)

// What is found by halving is what is found by going through all.
func TestMappingsAreFoundByAddress(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		draw := func() (vs []image.VMA) {
			at := uint64(0)
			for range r.IntN(8) {
				at += r.Uint64N(3)
				v := image.VMA{Start: at, End: at + 1 + r.Uint64N(4), Fresh: r.IntN(3) == 0, Kind: image.Anonymous}
				if r.IntN(4) == 0 {
					v.Kind = image.FileBacked
				}
				vs, at = append(vs, v), v.End
			}
			return vs
		}
		old, vs := draw(), draw()
		for i := range old {
			o := &old[i]
			var want []image.VMA
			left := map[uint64]bool{} // addresses that nothing keeps
			for a := o.Start; a < o.End; a++ {
				left[a] = true
			}
			for k := range vs {
				v := &vs[k]
				if v.Start >= o.End || v.End <= o.Start {
					continue
				}
				want = append(want, *v)
				for a := v.Start; a < v.End && keeps(o, v); a++ {
					delete(left, a)
				}
			}
			if got := overlapping(vs, span{o.Start, o.End}); !slices.Equal(got, want) {
				t.Fatalf("seed %d: overlapping %d-%d of %v: %v", seed, o.Start, o.End, vs, got)
			}
			var got uint64
			for _, g := range gaps(o, vs) {
				for a := g.start; a < g.end; a++ {
					if !left[a] {
						t.Fatalf("seed %d: gaps of %v in %v have %d", seed, *o, vs, a)
					}
					got++
				}
			}
			if got != uint64(len(left)) {
				t.Fatalf("seed %d: gaps of %v in %v: %v, want %v", seed, *o, vs, gaps(o, vs), left)
			}
		}
	}
}
