package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// A search that rolls back before each step, and forks that are forked again,
// make no chain of zygotes, and each checkpoint stays what it was.
func TestSearchMakesNoChain(t *testing.T) {
	h := newHost(t, withoutStandbys)
	r := newReference(h, 8)
	type made struct{ box, id, sum, file string }
	var all []made
	rnd := rand.New(rand.NewPCG(1, 2))
	look := func(r *reference) (sum, file string) {
		return r.python.ask("sums()", "= "), r.python.ask("open('/root/f3').read()", "= ")
	}
	step := func(r *reference) {
		t.Helper()
		r.python.ask("dirty(64, 4)", "= ")
		m := made{box: r.box}
		m.sum, m.file = look(r)
		m.id = h.checkpoint(r.box).ID
		all = append(all, m)
		if n := h.engine.Generation(r.box, m.id); n > engine.MostGenerations+1 {
			t.Fatalf("checkpoint %d: generation %d", len(all), n)
		}
	}
	back := func(r *reference, m made) {
		t.Helper()
		_, ss := h.rollback(m.box, m.id)
		r.follow(ss)
		if sum, file := look(r); sum != m.sum || file != m.file {
			t.Fatalf("heap and file are %s and %s, want %s and %s", sum, file, m.sum, m.file)
		}
	}
	for range 4 * engine.MostGenerations {
		step(r)
		m := all[len(all)-1]
		if rnd.IntN(4) == 0 {
			m = all[rnd.IntN(len(all))]
		}
		back(r, m)
		if rnd.IntN(4) == 0 { // twice, nothing between
			back(r, all[rnd.IntN(len(all))])
		}
	}
	for _, m := range all {
		back(r, m)
	}
	own := len(all)
	for range 2 * engine.MostGenerations {
		id := h.id("sb")
		from := all[len(all)-1]
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: from.box, Checkpoint: from.id}, Sandboxes: []string{id}, Hostnames: make([]string, 1),
		}))
		check(t, err)
		x := &reference{h: h, box: id, bash: h.adopt(id, r.bash.id), python: h.adopt(id, r.python.id)}
		step(x)
	}
	for _, m := range all[own:] {
		back(&reference{h: h, box: m.box, bash: r.bash, python: r.python}, m)
	}
}
