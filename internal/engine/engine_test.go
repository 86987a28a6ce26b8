package engine_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// interpreter answers a line of python with "= " and its value.
const interpreter = `
import sys
names = {}
print('= ready', flush=True)
for line in sys.stdin:
    try: v = eval(line, names)
    except SyntaxError: v = exec(line, names)
    print('=', v, flush=True)
`

func TestExecAndFiles(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	if got := p.ask("6*7", "= "); got != "42" {
		t.Errorf("got %q", got)
	}
}

func TestRollbackBringsProcessAndFilesBack(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("import os", "= ")
	p.ask("x = 41", "= ")
	p.ask("open('/root/f','w').write('before')", "= ")
	pid := p.ask("os.getpid()", "= ")
	c := h.checkpoint(box)
	t.Logf("frozen %d us: %v", c.FrozenNS/1000, c.StageNS)
	p.ask("x = 0", "= ")
	p.ask("open('/root/f','w').write('after')", "= ")
	for range 3 {
		r, ss := h.rollback(box, c.ID)
		t.Logf("rollback %d us: %v", r.ElapsedNS/1000, r.StageNS)
		p = ss[p.id]
		if got := p.ask("x + 1", "= "); got != "42" {
			t.Errorf("x + 1 = %q", got)
		}
		if got := p.ask("open('/root/f').read()", "= "); got != "before" {
			t.Errorf("file has %q", got)
		}
		if got := p.ask("os.getpid()", "= "); got != pid {
			t.Errorf("pid %q, was %q", got, pid)
		}
		p.ask("x = 7", "= ")
		p.ask("open('/root/f','w').write('again')", "= ")
	}
}

// Eight callers fork one checkpoint at once, from one zygote.
func TestEightForksAtOnce(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 5", "= ")
	c := h.checkpoint(box)
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		ids[i] = h.id("sb")
		wg.Go(func() {
			_, err := forked(h.engine.Fork(background, control.ForkRequest{
				From: control.CheckpointRef{Sandbox: box, Checkpoint: c.ID}, Sandboxes: []string{ids[i]}, Hostnames: []string{""},
			}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, id := range ids {
		f := h.adopt(id, p.id)
		f.ask(fmt.Sprintf("x += %d", i), "= ")
		if got := f.ask("x", "= "); got != fmt.Sprint(5+i) {
			t.Errorf("copy %d has x = %s", i, got)
		}
	}
	if got := p.ask("x", "= "); got != "5" {
		t.Errorf("the origin has x = %s", got)
	}
}

// A family whose files cannot be opened is an error, and leaves nothing.
func TestFamilyWithoutFiles(t *testing.T) {
	h := newHost(t)
	cfg := h.cfg
	cfg.Attach = "" // the host's engine has it
	cfg.Layers = []string{filepath.Join(t.TempDir(), "none")}
	e, err := engine.New(cfg, control.Events{}, slog.New(slog.DiscardHandler))
	if err == nil {
		_ = e.Close(background)
		t.Fatal("a family without layers was made")
	}
	if !strings.Contains(err.Error(), "files") {
		t.Error(err)
	}
}
