package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// A rollback from a standby finds what one that goes the whole way finds.
func TestStandby(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 1", "= ")
	p.ask("import time; t = time.monotonic()", "= ")
	c := h.checkpoint(box)
	for range 5 {
		p.ask("x += 1", "= ")
		h.engine.Wait() // the standby stands
		r, ss := h.rollback(box, c.ID)
		if _, whole := r.StageNS["boot"]; whole {
			t.Errorf("there was no standby: %v", r.StageNS)
		}
		p = ss[p.id]
		if got := p.ask("x", "= "); got != "1" {
			t.Errorf("x is %s", got)
		}
		if got := p.ask("time.monotonic() >= t", "= "); got != "True" {
			t.Error("the clock went back")
		}
	}
	// It goes with its checkpoint, whether built or being built.
	for range 3 {
		c := h.checkpoint(box)
		check(t, h.engine.CheckpointRemove(background, control.CheckpointRef{Sandbox: box, Checkpoint: c.ID}))
	}
	h.engine.Wait()
	if _, _, err := h.engine.Rollback(background, control.CheckpointRef{Sandbox: box, Checkpoint: c.ID}); err != nil {
		t.Error(err)
	}
}
