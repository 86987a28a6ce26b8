package memory

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Processes map memory at random, as JavaScript engines do, near the zygote itself and where others are parked.
// No two parts stand at one place, and what is moved back replaces nothing that is still to be moved.
func TestWindowsAtRandom(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	for range 300 {
		l := newLayout()
		maps := map[int][]image.VMA{}
		for range 30 {
			pid := 1 + r.IntN(4)
			if r.IntN(6) == 0 {
				delete(maps, pid)
				delete(l.extents, pid)
				if l.inPlace == pid {
					l.inPlace = 0
				}
				continue
			}
			// Few windows, so that they meet: around the stub and where parking begins.
			base := []uint64{tracee.StubStart, parkLow, 0x5500_0000_0000}[r.IntN(3)]
			start := base + uint64(r.IntN(12))*window + window/2
			v := image.VMA{Start: start, End: start + uint64(1+r.IntN(3))*window/2}
			maps[pid] = append(maps[pid], v)
			slices.SortFunc(maps[pid], func(a, b image.VMA) int { return int(int64(a.Start) - int64(b.Start)) })
			before := l.clone()
			moves, err := l.fit(pid, maps[pid])
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range moves {
				if !slices.Contains(before.extents[m.pid], m.old) {
					t.Fatalf("%+v of process %d moves, and never was", m.old, m.pid)
				}
			}
			checkLayout(t, l, maps)
		}
	}
}

func checkLayout(t *testing.T, l *layout, maps map[int][]image.VMA) {
	t.Helper()
	var all []extent
	for pid, vmas := range maps {
		for _, v := range vmas {
			l.park(pid, v.Start) // panics if there is no place
		}
		own := needed(vmas)
		for _, e := range l.extents[pid] {
			if overlapsNatural([]extent{{start: e.at, end: e.parkEnd()}}, tracee.StubStart, tracee.StubEnd) {
				t.Fatalf("process %d: %+v stands where the zygote does", pid, e)
			}
			if pid != l.inPlace && overlapsNatural(own, e.at, e.parkEnd()) {
				t.Fatalf("process %d: %+v stands where another part belongs", pid, e)
			}
			if pid == l.inPlace && e.at != e.start {
				t.Fatalf("process %d, in place: %+v", pid, e)
			}
			for _, o := range all {
				if overlaps([]extent{o}, e.at, e.parkEnd()) {
					t.Fatalf("%+v stands where %+v does", e, o)
				}
			}
		}
		all = append(all, l.extents[pid]...)
	}
}
