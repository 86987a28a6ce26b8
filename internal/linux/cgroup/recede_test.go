package cgroup_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/sched"
)

func TestRecedeMakesThreadsIdleOnes(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{})
	cmd, _, _ := start(t, g, "spin")
	policy := func() uint32 {
		a, e := sched.Get(cmd.Process.Pid)
		if e != 0 {
			t.Fatal(e)
		}
		return a.Policy
	}
	idle := g.Idle() // as a group, where it has the controller
	g.Recede()
	if !g.Idle() && policy() != unix.SCHED_IDLE {
		t.Errorf("it has policy %d", policy())
	}
	g.Advance()
	if idle || g.Idle() || policy() != sched.Other {
		t.Errorf("it was idle: %v, and is: %v, with policy %d", idle, g.Idle(), policy())
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
}

// A group with the CPU controller is idle as a whole; one that is closed is left
// alone.
func TestRecedeOfAGroup(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{CPUs: 1})
	if g.Recede(); !g.Idle() {
		t.Error("it did not recede")
	}
	if g.Advance(); g.Idle() {
		t.Error("it did not advance")
	}
	if err := g.Remove(soon(t)); err != nil {
		t.Fatal(err)
	}
	g.Close()
	g.Recede()
	g.Advance()
}
