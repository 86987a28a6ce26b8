package durable_test

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/durable"
)

// TestAfter: two differences made one lead to the same state.
func TestAfter(t *testing.T) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(4, 4))}
	r := open(t, filepath.Join(t.TempDir(), "r"))
	span := func(n, count uint64) durable.Span { return durable.Span{Start: n * page, End: (n + count) * page} }
	// step changes memory at random and tells the difference.
	step := func(m memory, first bool) (memory, durable.Pages) {
		now := memory{}
		p := durable.Pages{PID: 3, Full: first, Source: now}
		from, count := w.rand.Uint64N(20), 60+w.rand.Uint64N(60)
		p.Mapped = []durable.Span{span(from, count)}
		gone := w.rand.Uint64N(90)
		p.Gone = []durable.Span{span(gone, 10)}
		for n, b := range m {
			if !first && n >= from && n < from+count && (n < gone || n >= gone+10) {
				now[n] = b
			}
		}
		for range 30 {
			n := w.rand.Uint64N(100)
			now[n] = w.content(page)
			p.Changed = append(p.Changed, span(n, 1))
		}
		return now, p
	}
	for round := range 40 {
		a, first := step(nil, true)
		b, second := step(a, round%7 == 0)
		c, third := step(b, round%5 == 0)
		whole, err := third.After(second)
		must(t, err)
		parent := durable.Checkpoint{ID: "a", Upper: -1, Memory: []durable.Pages{first}}
		_, err = r.Write(t.Context(), parent)
		must(t, err)
		_, err = r.Write(t.Context(), durable.Checkpoint{ID: "c", Parent: "a", Upper: -1, Memory: []durable.Pages{whole}})
		must(t, err)
		s, err := r.Get(t.Context(), "c")
		must(t, err)
		got := 0
		must(t, s.Pages(t.Context(), 3, func(run durable.Run) error {
			for i := uint64(0); i < run.Len; i += page {
				n := (run.Addr + i) / page
				if string(run.Data[i:i+page]) != string(c[n]) {
					t.Errorf("round %d: page %d is another", round, n)
				}
				got++
			}
			return nil
		}))
		if got != len(c) {
			t.Errorf("round %d: %d pages, not %d", round, got, len(c))
		}
		must(t, s.Close())
		must(t, r.Remove("a"))
		must(t, r.Remove("c"))
	}
	if _, err := (durable.Pages{PID: 1}).After(durable.Pages{PID: 2}); err == nil {
		t.Error("differences of two processes")
	}
}
