package engine_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// copyOf forks one sandbox from a checkpoint.
func (k *keeping) copyOf(box, checkpoint string) string {
	k.t.Helper()
	id := k.id("copy")
	_, files, err := k.engine.Fork(background, control.ForkRequest{
		From: control.CheckpointRef{Sandbox: box, Checkpoint: checkpoint}, Sandboxes: []string{id}, Hostnames: []string{"copy"},
	})
	check(k.t, err)
	for _, f := range files { // its streams are adopted
		_ = f.Close()
	}
	return id
}

// records are the durable checkpoints on disk.
func (k *keeping) records() int {
	k.t.Helper()
	all, err := os.ReadDir(filepath.Join(k.repository, "records"))
	check(k.t, err)
	return len(all)
}

// A copy that has no durable checkpoint of its own comes back at the one that it
// was forked from, also when the sandbox of that was removed, which takes the
// rest of the disk's. With the last copy that is gone, too.
func TestCopiesComeBackAtTheirOrigin(t *testing.T) {
	for _, removed := range []bool{false, true} {
		k := newKeeping(t)
		box := k.create()
		p := k.exec(box, false, "python3", "-c", interpreter)
		p.until("= ready")
		p.ask("x = 1", "= ")
		other := k.kept(box, k.keep(box).ID)
		p.ask("x = 2", "= ")
		origin := k.keep(box) // perhaps it is still being written when its sandbox goes
		copies := []string{k.copyOf(box, origin.ID), k.copyOf(box, origin.ID)}
		k.adopt(copies[0], p.id).ask("x = 3", "= ")
		if removed {
			check(t, k.engine.Remove(background, control.SandboxRequest{Sandbox: box}))
			if n := k.records(); n != 1 {
				t.Errorf("%d records are left of a removed sandbox with copies of one checkpoint", n)
			}
		} else {
			k.kept(box, origin.ID)
		}
		var req control.RecoverRequest
		for i, id := range append([]string{box}, copies...) {
			if i == 0 && removed {
				continue
			}
			old := k.tree(id)
			if i > 0 && (old.Origin != origin.ID || len(old.Checkpoints) != 0) {
				t.Fatalf("the tree of a copy is %+v", old)
			}
			req.Sandboxes = append(req.Sandboxes, control.RecoverSandbox{
				CreateRequest: control.CreateRequest{Sandbox: id, Hostname: "copy"}, At: old.At, Checkpoints: old.Checkpoints, Origin: old.Origin,
			})
		}
		k.killSupervisor()
		_, err := k.engine.Recover(background, req)
		check(t, err)
		for _, id := range copies {
			r, ss := k.rollback(id, origin.ID)
			if r.Sandbox.At != "" || !r.Sandbox.Alive {
				t.Errorf("the copy that came back is %+v", r.Sandbox)
			}
			if got := ss[p.id].ask("x", "= "); got != "2" {
				t.Errorf("x is %s in a copy that came back, want 2", got)
			}
			if _, _, err := k.engine.Rollback(background, control.CheckpointRef{Sandbox: id, Checkpoint: other.ID}); !fault.Is(err, fault.NotFound) {
				t.Errorf("a copy rolled back to another's checkpoint: %v", err)
			}
		}
		// It goes on from there, and needs its origin no more than any other.
		c := k.kept(copies[0], k.keep(copies[0]).ID)
		check(t, k.engine.Remove(background, control.SandboxRequest{Sandbox: copies[1]}))
		if n := k.records(); !removed && n != 3 || removed && n != 2 {
			t.Errorf("%d records are left with one of two copies", n)
		}
		tree := k.tree(copies[0])
		k.killSupervisor()
		if back := k.recover(tree); back.At != c.ID {
			t.Errorf("the copy comes back at %s, want %s", back.At, c.ID)
		}
		check(t, k.engine.Remove(background, control.SandboxRequest{Sandbox: copies[0]}))
		if n := k.records(); removed && n != 0 {
			t.Errorf("%d records are left of nobody", n)
		}
	}
}

// A checkpoint that was removed while its supervisor died is removed by the next one,
// whether its sandbox is there or not.
func TestRecordOfWhatWasRemovedGoes(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	first := k.kept(box, k.keep(box).ID)
	k.kept(box, k.keep(box).ID)
	if n := k.records(); n != 2 {
		t.Fatalf("%d records of two checkpoints", n)
	}
	tree := k.tree(box)
	k.killSupervisor()
	tree.At = first.ID
	tree.Checkpoints = slices.DeleteFunc(tree.Checkpoints, func(c control.Checkpoint) bool { return c.ID != first.ID })
	if back := k.recover(tree); back.At != first.ID {
		t.Errorf("it comes back at %s, want %s", back.At, first.ID)
	}
	if n := k.records(); n != 1 {
		t.Errorf("%d records are left of one checkpoint", n)
	}
}
