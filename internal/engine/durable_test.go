package engine_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
	"github.com/sandtree/sandtree/internal/worker"
	workercontrol "github.com/sandtree/sandtree/internal/worker/control"
)

// keeping is a host whose engine has a worker, in this process.
type keeping struct {
	*host
	repository string
	worker     *worker.Worker
}

func newKeeping(t testing.TB) *keeping {
	t.Helper()
	return newKeepingWith(t)
}

func newKeepingWith(t testing.TB, change ...func(*control.Config)) *keeping {
	t.Helper()
	return newKeepingAt(t, filepath.Join(t.TempDir(), "repository"), change...)
}

func newKeepingAt(t testing.TB, repository string, change ...func(*control.Config)) *keeping {
	t.Helper()
	k := &keeping{repository: repository}
	k.host = newHost(t, append(change, func(c *control.Config) { c.Durable = true })...)
	k.startWorker()
	t.Cleanup(func() { k.worker.Close() })
	return k
}

// startWorker gives the engine a worker, in place of the one it has.
func (k *keeping) startWorker() {
	k.t.Helper()
	w, err := worker.Open(workercontrol.Config{Family: "family", Repository: k.repository}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	check(k.t, err)
	k.worker = w
	a, b, err := wire.Pair()
	check(k.t, err)
	defer a.Close()
	check(k.t, w.Serve(a))
	check(k.t, k.engine.UseWorker(background, b))
}

// killSupervisor ends the engine with all that is in memory and in its pool, and
// starts another one in the place of it.
func (k *keeping) killSupervisor() {
	k.t.Helper()
	k.worker.Close()
	k.restart()
	k.startWorker()
}

func (k *keeping) keep(box string) control.Checkpoint {
	k.t.Helper()
	c, err := k.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: k.id("cp"), Keep: true})
	check(k.t, err)
	return c
}

// kept waits until a checkpoint is durable.
func (k *keeping) kept(box, id string) control.Checkpoint {
	k.t.Helper()
	c, err := k.engine.Kept(background, control.CheckpointRef{Sandbox: box, Checkpoint: id})
	check(k.t, err)
	if c.Durable != control.DurableYes {
		k.t.Fatalf("checkpoint %s is not durable: %s", id, c.DurableReason)
	}
	return c
}

func (k *keeping) tree(box string) control.TreeReply {
	k.t.Helper()
	t, err := k.engine.Tree(background, control.SandboxRequest{Sandbox: box})
	check(k.t, err)
	return t
}

// recover makes a sandbox known to an engine that has not made it.
func (k *keeping) recover(old control.TreeReply) control.TreeReply {
	k.t.Helper()
	r, err := k.engine.Recover(background, control.RecoverRequest{Sandboxes: []control.RecoverSandbox{{
		CreateRequest: control.CreateRequest{Sandbox: old.Sandbox, Hostname: "box"}, Generation: 7, At: old.At, Checkpoints: old.Checkpoints, Origin: old.Origin,
	}}})
	check(k.t, err)
	return r.Trees[0]
}

// What a program was at a durable checkpoint, it is again after everything in
// memory and in the pool is gone: variables, files, /dev/shm.
func TestDurableCheckpointComesBack(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("heap = bytearray(b'x') * (4 << 20)", "= ")
	p.ask("open('/root/f','w').write('one')", "= ")
	p.ask("open('/dev/shm/s','w').write('shared')", "= ")
	p.ask("d = open('/root/deleted','w+'); d.write('gone'); d.flush(); import os; os.unlink('/root/deleted')", "= ")
	p.ask("x = 1", "= ")
	first := k.kept(box, k.keep(box).ID)
	for i := 2; i < 6; i++ {
		p.ask(fmt.Sprintf("x = %d", i), "= ")
		p.ask(fmt.Sprintf("heap[%d] = %d", i<<16, i), "= ")
		p.ask(fmt.Sprintf("open('/root/f%d','w').write('%d')", i, i), "= ")
		k.keep(box)
	}
	tree := k.tree(box)
	last := k.kept(box, tree.At)
	t.Logf("first %d bytes, last %d", first.DurableBytes, last.DurableBytes)
	if last.DurableBytes > first.DurableBytes/4 {
		t.Errorf("the first durable checkpoint takes %d bytes, one with little changed %d", first.DurableBytes, last.DurableBytes)
	}

	k.killSupervisor()
	tree = k.recover(tree)
	if len(tree.Checkpoints) != 5 || tree.At != last.ID {
		t.Fatalf("%d checkpoints come back, and the sandbox stands at %s: %+v", len(tree.Checkpoints), tree.At, tree)
	}
	for _, want := range []struct {
		id string
		x  int
	}{{last.ID, 5}, {first.ID, 1}, {last.ID, 5}} {
		r, ss := k.rollback(box, want.id)
		if r.Sandbox.Generation < 8 {
			t.Errorf("generation %d goes back", r.Sandbox.Generation)
		}
		p = ss[p.id]
		if got := p.ask("x, heap.count(b'x'), open('/root/f').read(), open('/dev/shm/s').read(), (d.seek(0), d.read())[1]", "= "); got !=
			fmt.Sprintf("(%d, %d, 'one', 'shared', 'gone')", want.x, 4<<20-max(want.x-1, 0)) {
			t.Errorf("it has %s", got)
		}
		if got := p.ask("sorted(os.listdir('/root'))[-1]", "= "); want.x == 5 && got != "f5" {
			t.Errorf("the last file is %s", got)
		}
	}
	// And on from there.
	p.ask("x = 99", "= ")
	c := k.kept(box, k.keep(box).ID)
	if c.Parent != last.ID {
		t.Errorf("the parent is %s, not %s", c.Parent, last.ID)
	}
	tree = k.tree(box)
	k.killSupervisor()
	k.recover(tree)
	_, ss := k.rollback(box, c.ID)
	if got := ss[p.id].ask("x, heap.count(b'x')", "= "); got != fmt.Sprintf("(99, %d)", 4<<20-4) {
		t.Errorf("it has %s", got)
	}
}

// suspended suspends a sandbox and brings it back, with what the session had not
// read yet.
func (k *keeping) suspended(box string, p *talk, unload bool) {
	k.t.Helper()
	c, err := k.engine.Suspend(background, control.SuspendRequest{Sandbox: box, Checkpoint: k.id("cp"), Unload: unload})
	check(k.t, err)
	if c.Durable != control.DurableYes || unload != (c.Memory == control.MemoryNone) {
		k.t.Fatalf("suspended with unload %v, the checkpoint is %s in memory and durable: %s", unload, c.Memory, c.Durable)
	}
	k.rollbackInPlace(box, c.ID, p)
}

// Whatever is suspended goes on as if nothing had been: each line comes once.
func TestSuspendLosesNothing(t *testing.T) {
	rounds := 30
	if n, err := strconv.Atoi(os.Getenv("SANDTREE_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	k := newKeeping(t)
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("import os; x = 0; f = open('/root/f', 'w')", "= ")
	for i := range rounds {
		p.ask(fmt.Sprintf("x += 1; _ = f.write('%d\\n'); f.flush()", i), "= ")
		p.say("'unread'")
		p.say("x")
		k.suspended(box, p, i%2 == 1)
		if got := p.until("= "); got != "unread" {
			t.Fatalf("round %d: the line that nobody had read is %q", i, got)
		}
		if got := p.until("= "); got != strconv.Itoa(i+1) {
			t.Fatalf("round %d: x = %s", i, got)
		}
		if i > 0 { // the trees would only grow
			check(t, k.engine.CheckpointRemove(background, control.CheckpointRef{Sandbox: box, Checkpoint: k.tree(box).Checkpoints[0].ID}))
		}
	}
	if got := p.ask("open('/root/f').read().count('\\n'), os.getpid()", "= "); got != fmt.Sprintf("(%d, 2)", rounds) {
		t.Errorf("it has %s", got)
	}
	kids := children(t)
	k.engine.Wait()
	if n := children(t); n > kids {
		t.Errorf("%d children, then %d", kids, n)
	}
}

// A suspension that fails leaves the processes running, and nothing else.
func TestSuspendThatFails(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 1", "= ")
	for _, point := range []string{
		"engine.checkpoint.stopped", "engine.checkpoint.captured", "engine.checkpoint.resumed", "engine.checkpoint.zygotes",
		"engine.keep.begun", "engine.keep.written", "engine.suspend.written", "worker.write.begun", "worker.write.written",
	} {
		t.Run(point, func(t *testing.T) {
			failpoint.Enable(t, point, "error")
			_, err := k.engine.Suspend(background, control.SuspendRequest{Sandbox: box, Checkpoint: k.id("cp"), Unload: true})
			if err == nil {
				t.Fatal("it does not fail")
			}
		})
		if got := p.ask("x", "= "); got != "1" {
			t.Fatalf("after a failure at %s, x = %s", point, got)
		}
		if n := len(k.tree(box).Checkpoints); n != 0 {
			t.Errorf("after a failure at %s there are %d checkpoints", point, n)
		}
	}
	k.suspended(box, p, true)
	if got := p.ask("x", "= "); got != "1" {
		t.Errorf("x = %s", got)
	}
}

// A worker that dies, or fails, in the middle of its work leaves checkpoints that
// are reported not durable, or writes them with the next one; reading goes on too.
func TestWorkerThatFails(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 1", "= ")
	var failed string
	t.Run("fails", func(t *testing.T) {
		failpoint.Enable(t, "worker.write.begun", "error")
		c, err := k.engine.Kept(background, control.CheckpointRef{Sandbox: box, Checkpoint: k.keep(box).ID})
		check(t, err)
		if c.Durable != control.DurableFailed || c.DurableReason == "" {
			t.Errorf("a checkpoint that could not be written is %q: %q", c.Durable, c.DurableReason)
		}
		failed = c.ID
	})
	k.worker.Close() // as if it had died
	p.ask("x = 2", "= ")
	c := k.keep(box)
	k.startWorker()
	k.kept(box, c.ID)
	k.kept(box, failed) // tried again, since somebody asks
	tree := k.tree(box)
	k.killSupervisor()
	k.recover(tree)
	for _, point := range []string{"engine.load.read", "engine.load.files", "engine.load.zygotes", "worker.read.read", "worker.unpack.unpacked"} {
		t.Run(point, func(t *testing.T) {
			failpoint.Enable(t, point, "error")
			if _, _, err := k.engine.Rollback(background, control.CheckpointRef{Sandbox: box, Checkpoint: failed}); err == nil {
				t.Error("it does not fail")
			}
		})
	}
	k.rollbackInPlace(box, failed, p)
	if got := p.ask("x", "= "); got != "1" {
		t.Errorf("x = %s", got)
	}
	k.rollbackInPlace(box, c.ID, p)
	if got := p.ask("x", "= "); got != "2" {
		t.Errorf("x = %s", got)
	}
}
