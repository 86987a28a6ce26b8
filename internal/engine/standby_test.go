package engine_test

import (
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
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

// A fork from a standby is like any other: its own name, limits and sessions,
// and the standby's first sandbox may go.
func TestForkOfStandby(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 1; open('/root/f', 'w').write('1' * 100000)", "= ")
	first := h.checkpoint(box)
	p.ask("x = 2", "= ")
	second := h.checkpoint(box)
	h.engine.Wait()
	var bodies int
	for _, c := range []struct {
		id, x string
	}{{first.ID, "1"}, {second.ID, "2"}} {
		bodies = h.engine.Standbys(box, c.id)
		if bodies != 1 {
			t.Errorf("%d standbys for a checkpoint that is near", bodies)
		}
		id := h.id("sb")
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: box, Checkpoint: c.id}, Sandboxes: []string{id}, Hostnames: []string{"copy"},
		}))
		check(t, err)
		k := h.adopt(id, p.id)
		if got := k.ask("x", "= "); got != c.x {
			t.Errorf("x is %s in a fork, not %s", got, c.x)
		}
		if got := k.ask("__import__('socket').gethostname()", "= "); got != "copy" {
			t.Errorf("the fork is called %s", got)
		}
		st, err := h.engine.Stats(background, control.SandboxRequest{Sandbox: id})
		check(t, err)
		if st.Sandbox != id {
			t.Errorf("stats are of %s", st.Sandbox)
		}
		k.ask("import os; f = open('/root/g', 'w'); f.write('2' * 2000000); f.flush(); os.sync()", "= ")
		k.ask("x = 3", "= ")
		h.checkpoint(id)
	}
	if got := p.ask("x", "= "); got != "2" {
		t.Errorf("x became %s in the sandbox that was forked", got)
	}
	check(t, h.engine.Remove(background, control.SandboxRequest{Sandbox: box}))
}

// Checkpoints that follow one another quickly get no standbys until there is a pause,
// unless the sandbox is rolled back between them.
func TestStandbysOfQuickCheckpoints(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	c := h.checkpoint(box)
	at := time.Now().Add(time.Hour) // the real ones are long ago
	took := func(since, want time.Duration) {
		t.Helper()
		at = at.Add(since)
		if got := h.engine.Took(box, c.ID, at); got != want {
			t.Errorf("%v after the last one a standby is built after %v, not %v", since, got, want)
		}
	}
	took(0, 0)
	took(20*time.Millisecond, 40*time.Millisecond)
	took(time.Second, 0)
	took(50*time.Millisecond, 100*time.Millisecond)
	h.rollbackInPlace(box, c.ID, p)
	took(10*time.Millisecond, 0)

	h.rollbackInPlace(box, c.ID, p)
	at = time.Now()
	took(0, 0)
	took(time.Millisecond, 2*time.Millisecond)
	h.engine.Wait()
	if n := h.engine.Standbys(box, c.ID); n != 1 {
		t.Errorf("%d standbys after the pause", n)
	}
}

// Named checkpoints have as many standbys as were asked for, and others not.
func TestNamedStandbys(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	var ids []string
	for range 4 {
		ids = append(ids, h.checkpoint(box).ID)
	}
	ref := control.CheckpointRef{Sandbox: box, Checkpoint: ids[0]}
	check(t, h.engine.Standby(background, control.StandbyRequest{CheckpointRef: ref, Count: 3}))
	h.engine.Wait()
	for i, want := range []int{3, 0, 1, 1} {
		if got := h.engine.Standbys(box, ids[i]); got != want {
			t.Errorf("checkpoint %d has %d standbys, want %d", i, got, want)
		}
	}
	copies := []string{h.id("sb"), h.id("sb"), h.id("sb")}
	_, err := forked(h.engine.Fork(background, control.ForkRequest{From: ref, Sandboxes: copies, Hostnames: make([]string, 3)}))
	check(t, err)
	for _, id := range copies {
		k := h.adopt(id, p.id)
		k.ask("1", "= ")
	}
	h.engine.Wait() // they are made again
	if got := h.engine.Standbys(box, ids[0]); got != 3 {
		t.Errorf("after a fork there are %d standbys, want 3", got)
	}
	check(t, h.engine.Standby(background, control.StandbyRequest{CheckpointRef: ref}))
	h.engine.Wait()
	if got := h.engine.Standbys(box, ids[0]); got != 0 {
		t.Errorf("%d standbys are left that nobody wants", got)
	}
	if err := h.engine.Standby(background, control.StandbyRequest{CheckpointRef: ref, Count: 100000}); !fault.Is(err, fault.Invalid) {
		t.Errorf("100000 standbys: %v", err)
	}
	ref.Checkpoint = "cp-none"
	if err := h.engine.Standby(background, control.StandbyRequest{CheckpointRef: ref, Count: 1}); !fault.Is(err, fault.NotFound) {
		t.Errorf("standbys of no checkpoint: %v", err)
	}
}

// Under memory pressure the older half of what stands ready goes, and everything
// works without.
func TestRelief(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 1", "= ")
	old, now := h.checkpoint(box), h.checkpoint(box)
	h.engine.Wait()
	h.engine.Relieve()
	if a, b := h.engine.Standbys(box, old.ID), h.engine.Standbys(box, now.ID); a != 0 || b != 1 {
		t.Errorf("%d standbys of the parent and %d of the checkpoint are left, want 0 and 1", a, b)
	}
	h.engine.Relieve()
	if n := h.engine.Standbys(box, now.ID); n != 0 {
		t.Errorf("%d standbys are left", n)
	}
	for range 3 { // each is the next one's reason to build one again
		_, ss := h.rollback(box, now.ID)
		p = ss[p.id]
		if got := p.ask("x", "= "); got != "1" {
			t.Errorf("x is %s", got)
		}
		h.engine.Wait()
	}
	if n := h.engine.Standbys(box, now.ID); n != 1 {
		t.Errorf("%d standbys of a checkpoint that is in use again", n)
	}
}
