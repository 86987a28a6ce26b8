package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// A sandbox whose processes were ended can still be forked, with other limits
// than its own, and rolled back.
func TestHaltKeepsTheCheckpoints(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.exec(box, false, "sh")
	x.ask("a=1; echo set", "set")
	cp := h.checkpoint(box)
	check(t, h.engine.Halt(background, control.SandboxRequest{Sandbox: box}))
	check(t, h.engine.Halt(background, control.SandboxRequest{Sandbox: box}))
	if s := <-h.ended; s.ID != x.id || s.Reason != "sandbox ended" {
		t.Errorf("ended: %+v", s)
	}
	l, err := h.engine.List(background)
	check(t, err)
	if len(l.Sandboxes) != 1 || l.Sandboxes[0].Alive {
		t.Errorf("%+v", l)
	}
	for _, r := range []*control.Resources{nil, {MemoryBytes: 64 << 20, PIDs: 50}, {}} {
		id := h.id("sb")
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: box, Checkpoint: cp.ID}, Sandboxes: []string{id}, Hostnames: []string{"copy"}, Resources: r,
		}))
		check(t, err)
		if got := h.adopt(id, x.id).ask("echo a=$a", "a="); got != "1" {
			t.Errorf("the variable is %q", got)
		}
		st, err := h.engine.Stats(background, control.SandboxRequest{Sandbox: id})
		check(t, err)
		if r != nil && (st.MemoryMaxBytes != r.MemoryBytes || st.PIDsMax != r.PIDs) {
			t.Errorf("limits %+v, want %+v", st, *r)
		}
		h.remove(id)
	}
	_, ss := h.rollback(box, cp.ID)
	if got := ss[x.id].ask("echo a=$a", "a="); got != "1" {
		t.Errorf("the variable is %q", got)
	}
}
