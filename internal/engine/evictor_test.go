package engine_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// The budget is of all families together: what was used longest ago leaves,
// whichever has it, and comes back.
func TestBudgetIsSharedByFamilies(t *testing.T) {
	const budget = 34 << 20
	ledger, err := control.NewLedger()
	check(t, err)
	defer ledger.Close()
	family := func(row int) (*keeping, string, *talk) {
		k := newKeepingWith(t, withoutStandbys, func(c *control.Config) {
			fd, err := unix.FcntlInt(ledger.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
			check(t, err)
			c.Ledger, err = control.OpenLedger(os.NewFile(uintptr(fd), "ledger"))
			check(t, err)
			c.Row, c.CheckpointMemory = row, budget
		})
		box := k.create()
		p := k.exec(box, false, "python3", "-c", interpreter)
		p.until("= ready")
		p.ask("heap = bytearray(8 << 20)", "= ")
		return k, box, p
	}
	write := func(k *keeping, box string, p *talk, n int) (ids []string) {
		for i := range n {
			p.ask(fmt.Sprintf("heap[:2 << 20] = bytes([%d]) * (2 << 20)", i+1), "= ")
			ids = append(ids, k.keep(box).ID)
		}
		k.engine.Wait()
		return ids
	}
	inMemory := func(k *keeping, box string) (n int) {
		for _, c := range k.tree(box).Checkpoints {
			if c.Memory != control.MemoryNone {
				n++
			}
		}
		return n
	}
	first, box1, p1 := family(0)
	second, box2, p2 := family(5)
	ids := write(first, box1, p1, 6)
	if n := inMemory(first, box1); n != 6 {
		t.Fatalf("%d of 6 checkpoints are in memory with room for all: %d bytes", n, ledger.Total())
	}
	t.Logf("the first takes %d bytes", ledger.Total())
	write(second, box2, p2, 7)
	for begin := time.Now(); ledger.Total() > budget; time.Sleep(10 * time.Millisecond) { // the first one's is done in its own time
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d bytes are in memory, with a budget of %d", ledger.Total(), budget)
		}
	}
	one, two := inMemory(first, box1), inMemory(second, box2)
	t.Logf("%d and %d checkpoints are in memory", one, two)
	if one > 4 || two != 7 {
		t.Errorf("%d of the one used first and %d of the other are in memory", one, two)
	}
	// Now the other way round.
	_, ss := first.rollback(box1, ids[0])
	p1 = ss[p1.id]
	if got := p1.ask("heap.count(1), heap.count(0)", "= "); got != fmt.Sprintf("(%d, %d)", 2<<20, 6<<20) {
		t.Errorf("it has %s", got)
	}
	write(first, box1, p1, 8)
	for begin := time.Now(); ledger.Total() > budget; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d bytes are in memory, with a budget of %d", ledger.Total(), budget)
		}
	}
	if n := inMemory(second, box2); n == 7 {
		t.Error("all of the second's are in memory still")
	}
}
