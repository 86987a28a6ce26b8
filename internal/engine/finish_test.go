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
// come behind each other: memory of which little or much was written, shared memory and
// files are as they were at each.
func TestCheckpointsInTheBackground(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("import mmap, os; heap, shared, file = bytearray(24 << 20), mmap.mmap(-1, 1 << 20), open('/root/f', 'w+b', 0)", "= ")
	p.ask("large = mmap.mmap(-1, 24 << 20); large[:] = b'l' * len(large)", "= ") // more than goes where small ones go
	var all []string
	for i := range 12 {
		p.ask(fmt.Sprintf("x = %d", i), "= ")
		p.ask(fmt.Sprintf("heap[:len(heap) >> %d] = bytes([x]) * (len(heap) >> %d)", i%4, i%4), "= ")
		p.ask("shared[x << 12:x + 2 << 12] = bytes([x]) * 8192; n = file.write(bytes([x]) * 10000)", "= ")
		c := h.checkpointAsync(box)
		if c.StageNS["stop"] <= 0 || c.StageNS["capture"] <= 0 || c.StageNS["resume"] <= 0 {
			t.Errorf("checkpoint %d took %v", i, c.StageNS)
		}
		all = append(all, c.ID)
		if i == 7 || i == 8 { // what it took is used for the next ones
			check(t, h.engine.CheckpointRemove(background, control.CheckpointRef{Sandbox: box, Checkpoint: all[i-4]}))
		}
	}
	for _, i := range []int{11, 0, 5, 10, 1} {
		h.rollbackInPlace(box, all[i], p)
		if got := p.ask("x, heap[0], heap[-1], heap[(len(heap) >> x % 4) - 1] == x", "= "); got != fmt.Sprintf("(%d, %d, %d, True)", i, i, i/4*4) {
			t.Errorf("checkpoint %d has %s", i, got)
		}
		if got := p.ask("[shared[k << 12] == min(k, x) for k in range(x + 2)].count(False), shared[x + 2 << 12], large[:].count(b'l') == len(large)", "= "); got != "(0, 0, True)" {
			t.Errorf("shared memory of checkpoint %d: %s", i, got)
		}
		if got := p.ask("os.pread(file.fileno(), 1 << 20, 0) == b''.join(bytes([k]) * 10000 for k in range(x + 1))", "= "); got != "True" {
			t.Errorf("the file of checkpoint %d: %s", i, got)
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

// Of checkpoints that are removed before they are made only what the next ones stand on
// is kept: those that are left are as they were, the newest and one between.
func TestCheckpointsThatAreSoonRemoved(t *testing.T) {
	h := newHost(t, withoutStandbys)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("import mmap; heap, shared = bytearray(1 << 20), mmap.mmap(-1, 1 << 20)", "= ")
	var all []string
	remove := func(i int) {
		check(t, h.engine.CheckpointRemove(background, control.CheckpointRef{Sandbox: box, Checkpoint: all[i]}))
	}
	const between = 9
	for i := range 20 {
		p.ask(fmt.Sprintf("x = %d; heap[x << 13:x + 3 << 13] = bytes([x]) * (3 << 13); shared[x << 12:x + 2 << 12] = bytes([x]) * 8192", i), "= ")
		p.ask("new = [bytearray(str(x).encode() * 50000), mmap.mmap(-1, 1 << 16)]; new[1][:3] = b'%3d' % x", "= ") // other mappings each time
		all = append(all, h.checkpointAsync(box).ID)
		if i > 1 && i-2 != between {
			remove(i - 2)
		}
	}
	remove(18)
	tree, err := h.engine.Tree(background, control.SandboxRequest{Sandbox: box})
	check(t, err)
	if len(tree.Checkpoints) != 2 || tree.Checkpoints[1].Parent != all[between] {
		t.Fatalf("left are %v", tree.Checkpoints)
	}
	for _, i := range []int{19, between, 19} {
		h.rollbackInPlace(box, all[i], p)
		got := p.ask("x, [heap[k << 13] == min(k, x) for k in range(x + 3)].count(False), [shared[k << 12] == min(k, x) for k in range(x + 2)].count(False), "+
			"heap[x + 3 << 13], shared[x + 2 << 12], new[0] == str(x).encode() * 50000, int(new[1][:3]) == x", "= ")
		if got != fmt.Sprintf("(%d, 0, 0, 0, 0, True, True)", i) {
			t.Errorf("checkpoint %d has %s", i, got)
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
