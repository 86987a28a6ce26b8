package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Memory of which much is copied before the stop, while the program writes on,
// comes back as it stood in the stop, from memory and from disk, also after
// checkpoints that came to nothing.
func TestMuchDirtyMemory(t *testing.T) {
	k := newKeeping(t)
	r := newReference(k.host, 32)
	r.python.ask("m = bytearray(16 << 20)", "= ")
	const writer = `exec('def w():\n c = 0\n while True:\n  c = c + 1 & 127\n  for i in range(0, len(m), 4096): m[i] = c') or threading.Thread(target=w, daemon=True).start()`
	r.python.ask(writer, "= ")
	type made struct{ id, sum string }
	var all []made
	for i := range 6 {
		r.python.ask("dirty(6000, 2)", "= ")
		sum := r.python.ask("sums()", "= ")
		if i%2 == 1 {
			t.Run("fails", func(t *testing.T) {
				failpoint.Enable(t, "engine.checkpoint.captured", "error")
				_, err := k.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: r.box, Checkpoint: k.id("cp")})
				if err == nil {
					t.Error("a checkpoint that fails does not")
				}
			})
		}
		all = append(all, made{k.keep(r.box).ID, sum})
	}
	look := func(m made) {
		t.Helper()
		_, ss := k.rollback(r.box, m.id)
		r.follow(ss)
		if sum := r.python.ask("sums()", "= "); sum != m.sum {
			t.Errorf("heap sums to %s, want %s", sum, m.sum)
		}
	}
	for _, m := range all {
		look(m)
	}
	k.engine.Wait()
	if n := k.engine.Unload(r.box); n < len(all)-1 {
		t.Errorf("%d of %d checkpoints are on disk alone", n, len(all))
	}
	for _, m := range all {
		look(m)
	}
}
