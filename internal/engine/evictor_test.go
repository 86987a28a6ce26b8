package engine_test

import (
	"math/rand/v2"
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// With room for a few checkpoints in memory, all of fifty come back with memory
// and files as they were, also when they were not to be durable; and what a
// sandbox stands at stays in memory.
func TestCheckpointsLeaveMemory(t *testing.T) {
	const budget = 16 << 20
	k := newKeepingWith(t, func(c *control.Config) { c.CheckpointMemory = budget })
	r := newReference(k.host, 2)
	type made struct{ id, sum, file string }
	var all []made
	look := func() (m made) {
		m.sum, m.file = r.python.ask("sums()", "= "), r.python.ask("open('/root/f3').read()", "= ")
		return m
	}
	for i := range 50 {
		r.python.ask("dirty(64, 4)", "= ")
		m := look()
		c, err := k.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: r.box, Checkpoint: k.id("cp"), Keep: i%5 > 0})
		check(t, err)
		m.id = c.ID
		all = append(all, m)
	}
	k.engine.Wait()
	inMemory := func() (n int) {
		tree := k.tree(r.box)
		for _, c := range tree.Checkpoints {
			if c.Memory != control.MemoryNone {
				n++
			} else if c.ID == tree.At {
				t.Errorf("the sandbox stands at %s, which is not in memory", c.ID)
			}
		}
		return n
	}
	bounded := func() {
		t.Helper()
		k.engine.Wait()
		s, err := k.engine.Stats(background, control.SandboxRequest{Sandbox: r.box})
		check(t, err)
		if s.FamilyMemory != s.CheckpointMemory || s.FamilyMemoryMax != budget {
			t.Fatalf("figures %+v", s)
		}
		if n := inMemory(); s.FamilyMemory > budget && n > 1 || n > 40 {
			t.Errorf("%d checkpoints are in memory with %d of %d bytes", n, s.FamilyMemory, s.FamilyMemoryMax)
		}
	}
	bounded()
	rnd := rand.New(rand.NewPCG(1, 2))
	for i, k1 := range rnd.Perm(len(all)) {
		m := all[k1]
		_, ss := k.rollback(r.box, m.id)
		r.follow(ss)
		if now := look(); now.sum != m.sum || now.file != m.file {
			t.Fatalf("heap and file are %s and %s, want %s and %s", now.sum, now.file, m.sum, m.file)
		}
		if i%10 == 9 { // and on from there
			r.python.ask("dirty(64, 4)", "= ")
			k.keep(r.box)
			bounded()
		}
	}
	k.engine.Relieve()
	k.engine.Wait()
	if n := inMemory(); n > 2 {
		t.Errorf("%d checkpoints are in memory when it is short", n)
	}
	_, ss := k.rollback(r.box, all[7].id)
	r.follow(ss)
	if now := look(); now.sum != all[7].sum || now.file != all[7].file {
		t.Fatalf("heap and file are %s and %s, want %s and %s", now.sum, now.file, all[7].sum, all[7].file)
	}
}
