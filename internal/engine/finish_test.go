package engine_test

import (
	"fmt"
	"testing"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

func (h *host) checkpointAsync(box string) control.Checkpoint {
	h.t.Helper()
	c, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp"), Async: true})
	check(h.t, err)
	return c
}

// Checkpoints that are not waited for are as good as others, however close they
// come behind each other.
func TestCheckpointsInTheBackground(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("heap = bytearray(8 << 20)", "= ")
	var all []string
	for i := range 12 {
		p.ask(fmt.Sprintf("x = %d", i), "= ")
		p.ask(fmt.Sprintf("heap[:] = bytes([%d]) * len(heap)", i), "= ")
		all = append(all, h.checkpointAsync(box).ID)
	}
	for _, i := range []int{11, 0, 5, 10, 1} {
		h.rollbackInPlace(box, all[i], p)
		if got := p.ask("x, heap.count(x) == len(heap)", "= "); got != fmt.Sprintf("(%d, True)", i) {
			t.Errorf("checkpoint %d has %s", i, got)
		}
	}
	tree, err := h.engine.Tree(background, control.SandboxRequest{Sandbox: box})
	check(t, err)
	for _, c := range tree.Checkpoints {
		if c.Memory != control.MemoryReady {
			t.Errorf("checkpoint %s is %s though another was rolled back to", c.ID, c.Memory)
		}
	}
}

// One that fails after it was answered leaves the tree and is reported; those that
// stand on its pages fail with it, and the next one is whole.
func TestCheckpointThatFailsInTheBackground(t *testing.T) {
	h := newHost(t, withoutStandbys)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 1", "= ")
	good := h.checkpoint(box)
	p.ask("x = 2", "= ")
	var lost string
	t.Run("fails", func(t *testing.T) {
		failpoint.Enable(t, "engine.checkpoint.zygotes", "error")
		lost = h.checkpointAsync(box).ID
		if got := (<-h.failed).Checkpoint; got != lost {
			t.Errorf("%s is reported, not %s", got, lost)
		}
	})
	if _, _, err := h.engine.Rollback(background, control.CheckpointRef{Sandbox: box, Checkpoint: lost}); err == nil {
		t.Error("a rollback to a checkpoint that failed works")
	}
	p.ask("x += 1", "= ")
	next := h.checkpoint(box)
	if next.Parent != good.ID {
		t.Errorf("the parent of the next is %s, not %s", next.Parent, good.ID)
	}
	p.ask("x = 0", "= ")
	h.rollbackInPlace(box, next.ID, p)
	if got := p.ask("x", "= "); got != "3" {
		t.Errorf("x = %s", got)
	}
	h.rollbackInPlace(box, good.ID, p)
	if got := p.ask("x", "= "); got != "1" {
		t.Errorf("x = %s", got)
	}
}
