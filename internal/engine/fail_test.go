package engine_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// children counts this process's children, zygotes among them.
func children(t testing.TB) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	check(t, err)
	n := 0
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err == nil {
			n += len(strings.Fields(string(b)))
		}
	}
	return n
}

func descriptors(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	return len(d)
}

// Whichever step of a checkpoint, rollback or fork fails, the live tree goes on,
// nothing is left, and the next one works.
func TestEveryStepMayFail(t *testing.T) {
	h := newHost(t, withoutStandbys)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 0", "= ")
	good := h.checkpoint(box)
	h.checkpoint(box)
	h.rollbackInPlace(box, good.ID, p)
	tries := map[string]func() error{
		"checkpoint": func() error {
			_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
			return err
		},
		"rollback": func() error {
			_, files, err := h.engine.Rollback(background, control.CheckpointRef{Sandbox: box, Checkpoint: good.ID})
			for _, f := range files {
				_ = f.Close()
			}
			return err
		},
		"fork": func() error {
			_, err := forked(h.engine.Fork(background, control.ForkRequest{
				From: control.CheckpointRef{Sandbox: box, Checkpoint: good.ID}, Sandboxes: []string{h.id("sb")}, Hostnames: []string{""},
			}))
			return err
		},
	}
	hit := 0
	x := 0
	for _, name := range failpoint.Names() {
		for what, try := range tries {
			if !strings.HasPrefix(name, "engine.") && !strings.HasPrefix(name, "process.") {
				continue
			}
			h.checkpoint(box) // so that the body has all that it keeps
			h.engine.Wait()
			kids, fds := children(t), descriptors(t)
			failed := false
			t.Run(name+"/"+what, func(t *testing.T) {
				failpoint.Enable(t, name, "error")
				failed = try() != nil
			})
			if !failed {
				if what != "checkpoint" { // it went through: the body or the copies are others now
					h.engine.Wait()
					p = h.adopt(box, p.id)
				}
				continue
			}
			hit++
			x++
			if got := p.ask("x == "+strconv.Itoa(x-1), "= "); got != "True" {
				t.Errorf("%s: after a %s that failed, x == %d is %s", name, what, x-1, got)
			}
			p.ask("x = "+strconv.Itoa(x), "= ")
			h.engine.Wait()
			if k, f := children(t), descriptors(t); k > kids || f > fds {
				t.Errorf("%s: a %s that failed leaves %d children and %d descriptors, there were %d and %d", name, what, k, f, kids, fds)
			}
			good = h.checkpoint(box)
			h.rollbackInPlace(box, good.ID, p)
			if got := p.ask("x", "= "); got != strconv.Itoa(x) {
				t.Errorf("%s: the next checkpoint has x = %s, want %d", name, got, x)
			}
		}
	}
	if hit < 9 {
		t.Errorf("only %d failures were seen", hit)
	}
}

// rollbackInPlace rolls back and has p go on in the new incarnation.
func (h *host) rollbackInPlace(box, checkpoint string, p *talk) {
	h.t.Helper()
	_, ss := h.rollback(box, checkpoint)
	n := ss[p.id]
	if n == nil {
		h.t.Fatalf("session %s is gone", p.id)
	}
	_ = p.in.Close()
	_ = p.out.Close()
	*p = *n
}
