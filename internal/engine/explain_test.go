package engine_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// A checkpoint lists what it holds, by process and kind, if that is asked.
func TestExplainedCheckpoint(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("setup", `
f = os.memfd_create('held'); os.write(f, b'x' * 100000); r, w = os.pipe(); os.write(w, b'y' * 1000)
call(libc.shmget, 0x77, 5000, 0o1600); k = child(lambda: time.sleep(1000)); z = child(lambda: os._exit(0)); until(lambda: stat(z)['state'] == 'Z')
`)
	take := func(explain bool) []control.Item {
		c, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp"), Explain: explain})
		check(t, err)
		return c.Items
	}
	if items := take(false); items != nil {
		t.Errorf("items that nobody asked for: %v", items)
	}
	items := take(true)
	has := func(process bool, kind, what string, least int64) {
		t.Helper()
		if !slices.ContainsFunc(items, func(i control.Item) bool {
			return i.Process > 0 == process && i.Kind == kind && strings.Contains(i.What, what) && i.Count > 0 && i.Bytes >= least
		}) {
			t.Errorf("no %s %s of %d bytes in %+v", kind, what, least, items)
		}
	}
	has(false, "System V segment", "key 0x77", 0)
	has(false, "session", "", 0)
	has(true, "memory", "mappings", 1)
	has(true, "threads", "", 100)
	has(true, "memfd", "held", 100_000)
	has(true, "pipe", "", 1000)
	has(true, "zombie", "", 0)
	var bytes int64
	for _, i := range items {
		if i.Kind == "memfd" {
			bytes += i.Bytes
		}
	}
	if bytes > 200_000 {
		t.Errorf("what two processes share was counted twice: %d bytes", bytes)
	}
	h.checkpoint(box)
}
