package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// newNarrow is a host whose repository is on a disk of its own, of some bytes.
func newNarrow(t *testing.T, bytes string, change ...func(*control.Config)) (k *keeping, disk string) {
	t.Helper()
	disk = t.TempDir()
	check(t, unix.Mount("narrow", disk, "tmpfs", 0, "size="+bytes))
	t.Cleanup(func() { check(t, unix.Unmount(disk, 0)) })
	return newKeepingAt(t, filepath.Join(disk, "repository"), change...), disk
}

// fill takes all room of a disk until it is given back.
func fill(t *testing.T, disk string) (free func()) {
	t.Helper()
	name := filepath.Join(disk, "filler")
	f, err := os.Create(name)
	check(t, err)
	defer f.Close()
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() { check(t, os.Remove(name)) }
}

// durable waits for the news that checkpoints are durable.
func (k *keeping) durable(ids ...string) {
	k.t.Helper()
	ids = slices.Clone(ids)
	late := time.After(20 * time.Second)
	for len(ids) > 0 {
		select {
		case c := <-k.news:
			if c.Durable == control.DurableYes {
				ids = slices.DeleteFunc(ids, func(id string) bool { return id == c.ID })
			}
		case <-late:
			k.t.Fatalf("%v are not durable after 20 s", ids)
		}
	}
}

// failing waits until a checkpoint cannot be made durable, and says why.
func (k *keeping) failing(box, id string) control.Checkpoint {
	k.t.Helper()
	c, err := k.engine.Kept(background, control.CheckpointRef{Sandbox: box, Checkpoint: id})
	check(k.t, err)
	if c.Durable != control.DurableFailed || c.DurableReason == "" {
		k.t.Fatalf("a checkpoint that cannot be written is %q: %q", c.Durable, c.DurableReason)
	}
	return c
}

// What a full disk has no room for becomes durable by itself when there is room
// again, all of it, with the memory that it had; what was removed meanwhile does not.
func TestDurableWhenThereIsRoomAgain(t *testing.T) {
	k, disk := newNarrow(t, "64m")
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("x = 0", "= ")
	k.kept(box, k.keep(box).ID)
	free := fill(t, disk)
	var ids []string
	for _, x := range []string{"1", "2", "3", "4"} {
		p.ask("x = "+x, "= ")
		c := k.failing(box, k.keep(box).ID)
		if c.DurableKind != fault.Exhausted || !strings.Contains(c.DurableReason, "no space left") {
			t.Errorf("with a full disk a checkpoint is %s: %s", c.DurableKind, c.DurableReason)
		}
		ids = append(ids, c.ID)
	}
	check(t, k.engine.CheckpointRemove(background, control.CheckpointRef{Sandbox: box, Checkpoint: ids[1]}))
	free()
	ids = slices.Delete(ids, 1, 2)
	k.durable(ids...)
	tree := k.tree(box)
	k.killSupervisor()
	k.recover(tree)
	for i, x := range []string{"1", "3", "4"} {
		k.rollbackInPlace(box, ids[i], p)
		if got := p.ask("x", "= "); got != x {
			t.Errorf("x = %s in checkpoint %d", got, i)
		}
	}
	check(t, k.engine.Remove(background, control.SandboxRequest{Sandbox: box}))
}

// While the disk is full, checkpoints take no more memory than they may: others
// are refused, and the sandbox goes on, until there is room.
func TestFullDiskHoldsCheckpointsBack(t *testing.T) {
	const budget = 16 << 20
	k, disk := newNarrow(t, "256m", func(c *control.Config) { c.CheckpointMemory = budget })
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	k.kept(box, k.keep(box).ID)
	free := fill(t, disk)
	n := 0
	for {
		p.ask("import os; x = os.urandom(2 << 20)", "= ")
		id := k.id("cp")
		_, err := k.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: id, Keep: true})
		if fault.Is(err, fault.Exhausted) && strings.Contains(err.Error(), "cannot leave it") {
			break
		}
		check(t, err)
		k.failing(box, id)
		if n++; n > 20 {
			t.Fatalf("%d checkpoints of 2 MiB are taken with a budget of %d bytes and a full disk", n, budget)
		}
	}
	p.ask("y = 5", "= ")
	free()
	k.durable(k.tree(box).At)
	k.engine.Wait()
	k.kept(box, k.keep(box).ID)
}

// What fails again and again is tried ever more rarely, and a worker that comes is
// asked at once.
func TestRetriesArePaced(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	var id string
	t.Run("fails", func(t *testing.T) {
		failpoint.Enable(t, "worker.write.begun", "error")
		id = k.failing(box, k.keep(box).ID).ID
		for _, want := range []time.Duration{engine.FirstRetry, 2 * engine.FirstRetry} {
			late := time.Now().Add(20 * time.Second)
			for pause := k.engine.RetryPause(); pause < want; pause = k.engine.RetryPause() {
				if time.Now().After(late) {
					t.Fatalf("it waits %s after 20 s, where it is to wait %s", pause, want)
				}
				time.Sleep(time.Millisecond)
			}
		}
	})
	k.worker.Close()
	k.startWorker()
	if pause := k.engine.RetryPause(); pause > 0 {
		t.Errorf("with the next worker it still waits %s", pause)
	}
	k.durable(id)
}

// What can never be written is not tried again.
func TestWhatCanNeverBeWrittenIsNotTriedAgain(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	k.exec(box, false, "python3", "-c", `
for i in range(1100):
    open(f"/dev/shm/{i}", "w").write("x" * 20000) # more than is kept without a descriptor
print("= ready", flush=True)
input()
`).until("= ready")
	c := k.failing(box, k.keep(box).ID)
	if c.DurableKind != fault.Exhausted || !strings.Contains(c.DurableReason, "files in memory") {
		t.Errorf("it is %s: %s", c.DurableKind, c.DurableReason)
	}
	k.engine.Wait()
	if pause := k.engine.RetryPause(); pause != engine.NoRetry {
		t.Errorf("it is tried again after %s", pause)
	}
}
