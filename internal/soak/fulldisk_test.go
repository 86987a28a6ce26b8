package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// smallDisk mounts an ext4 of some bytes until the test's end.
func smallDisk(t *testing.T, bytes int64) (at string) {
	t.Helper()
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mount")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, bytes), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", file},
		{"mount", "-o", "loop", file, at},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	return at
}

// fillDisk writes a file until the disk has no byte left.
func fillDisk(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	at := int64(0)
	for _, n := range []int64{64 << 20, 1 << 20, 4096} {
		for err == nil { // the machine's own disk is not written to
			if err = unix.Fallocate(int(f.Fd()), 0, at, n); err == nil {
				at += n
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			return errors.Join(err, f.Close())
		}
		err = nil
	}
	return f.Close()
}

// The disk runs full in the middle of a long loop, the daemon and its parts are
// killed there, and it has room again: what was reported durable is there at
// every time, what cannot be written is said to be so, and all goes on.
func TestFullDiskInTheMiddle(t *testing.T) {
	at := smallDisk(t, 6<<30)
	t.Setenv("TMPDIR", at)
	d := testdaemon.Start(t)
	ctx, c, k := t.Context(), d.Dial(), newDisasters(d)
	r := rand.New(rand.NewPCG(5, 6))
	var boxes []*box
	for range 3 {
		b, err := newBox(ctx, k, c)
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, b)
	}
	refused := 0
	loop := func(rounds int, full bool) {
		t.Helper()
		for i := range rounds {
			for n, b := range boxes {
				err := b.lap(ctx, r)
				if full && client.KindOf(err) == client.Exhausted {
					refused++
					err = nil
				}
				if err != nil {
					t.Fatalf("round %d of sandbox %d, disk full: %v: %v", i, n, full, err)
				}
			}
		}
	}
	loop(4, false)
	filler := filepath.Join(at, "filler")
	if err := fillDisk(filler); err != nil {
		t.Fatal(err)
	}
	loop(4, true)
	for _, how := range []disaster{supervisorKilled, "node", hostKilled, stopped} {
		var err error
		if how == "node" {
			err = k.killNode(r)
		} else {
			err = k.strike(how, r)
		}
		if err != nil {
			t.Fatalf("%s while the disk is full: %v", how, err)
		}
		for n, b := range boxes {
			// What it was since its last durable checkpoint cannot be kept by a stop.
			b.unsure = b.unsure || how == stopped
			if err := b.catchUp(ctx); err != nil {
				t.Fatalf("sandbox %d after %s while the disk is full: %v", n, how, err)
			}
		}
		loop(1, true)
	}
	if refused == 0 {
		t.Error("nothing was refused with a full disk")
	}
	t.Logf("%d operations were refused", refused)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for n, b := range boxes {
		if err := b.keptAtLast(ctx); err != nil {
			t.Errorf("sandbox %d, when the disk has room again: %v", n, err)
		}
	}
	loop(3, false)
	for n, b := range boxes {
		for i := range b.kept {
			if !b.kept[i].durable {
				continue
			}
			if _, err := b.sb.Rollback(ctx, b.kept[i].id); err != nil {
				t.Fatalf("sandbox %d to %+v: %v", n, b.kept[i], err)
			}
			if err := b.compare(ctx, &b.kept[i]); err != nil {
				t.Errorf("sandbox %d at %+v: %v", n, b.kept[i], err)
			}
		}
		v, err := b.sb.Verify(ctx)
		if err != nil || len(v.Problems) > 0 {
			t.Errorf("sandbox %d: verify: %v %v", n, v.Problems, err)
		}
		if err := b.remove(ctx); err != nil {
			t.Error(err)
		}
	}
}

// keptAtLast waits until every checkpoint that could not be made durable is so, without
// being asked for.
func (b *box) keptAtLast(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // it is tried twice a minute
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		t, err := b.sb.Tree(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(t.Checkpoints, func(c *client.CheckpointInfo) bool {
			return c.Durable == client.DurableFailed || c.Durable == client.DurablePending
		})
		if i < 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("checkpoint %s is %s: %s", t.Checkpoints[i].ID, t.Checkpoints[i].Durable, t.Checkpoints[i].DurableReason)
		}
	}
}

// lap lets the program do a step, and makes that durable. After an error the sandbox
// is where it was, with a checkpoint in memory or without.
func (b *box) lap(ctx context.Context, r *rand.Rand) error {
	if err := b.write(ctx, r); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := b.checkpoint(ctx, true); err != nil {
		b.unsure = true
		said := b.last
		if now, e := b.verify(ctx); e != nil || now != said {
			return fmt.Errorf("after a checkpoint that failed (%w) it says %q, and said %q: %w", err, now, said, e)
		}
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}
