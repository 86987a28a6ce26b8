package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

var removals = flag.Int("removals", 6, "rounds of forking what is being removed")

// Checkpoints and their sandbox are removed while copies are made of them, and
// copies while their origin is: a copy is whole or not there, also when its
// supervisor is killed afterwards, and in the end the disk has no record left.
func TestForksOfWhatIsRemoved(t *testing.T) {
	d := testdaemon.Start(t)
	ctx, c, k := t.Context(), d.Dial(), newDisasters(d)
	r := rand.New(rand.NewPCG(7, 8))
	var made, refused atomic.Int64
	for round := range *removals {
		b, err := newBox(ctx, k, c)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := errors.Join(b.write(ctx, r), b.checkpoint(ctx, r.IntN(2) == 0)); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var copies []*box
		var wg sync.WaitGroup
		errs := make([]error, 6)
		for i := range 3 {
			seed := r.Uint64()
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, 1))
				for range 4 {
					f, err := forkOf(ctx, b, b.kept[r.IntN(len(b.kept))])
					switch client.KindOf(err) {
					case "":
					case client.NotFound, client.Conflict:
						refused.Add(1)
						continue
					default:
						errs[i] = fmt.Errorf("fork: %w", err)
						return
					}
					made.Add(1)
					if r.IntN(3) == 0 {
						if err := f.remove(ctx); err != nil {
							errs[i] = fmt.Errorf("remove a copy: %w", err)
							return
						}
						continue
					}
					mu.Lock()
					copies = append(copies, f)
					mu.Unlock()
				}
			})
		}
		order := r.Perm(len(b.kept))
		wg.Go(func() {
			for _, i := range order[:3] {
				if err := gone(b.sb.RemoveCheckpoint(ctx, b.kept[i].id)); err != nil {
					errs[3] = fmt.Errorf("remove checkpoint: %w", err)
				}
			}
		})
		if round%2 == 0 {
			wg.Go(func() { errs[4] = b.remove(ctx) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if round%3 == 2 {
			if err := k.strike(supervisorKilled, r); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range copies {
			if err := f.catchUp(ctx); errors.Is(err, errLost) { // none was durable
				err = f.remove(ctx)
				if err != nil {
					t.Errorf("round %d: remove a lost copy: %v", round, err)
				}
				continue
			} else if err != nil {
				t.Fatalf("round %d: copy %s of %+v: %v", round, f.sb.ID, f.origin, err)
			}
			if err := f.compare(ctx, &f.origin); err != nil {
				t.Fatalf("round %d: copy %s of %+v: %v", round, f.sb.ID, f.origin, err)
			}
			if err := f.remove(ctx); err != nil {
				t.Errorf("round %d: remove a copy: %v", round, err)
			}
		}
		if !b.removed {
			if err := b.remove(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	t.Logf("%d copies were made, %d forks came too late", made.Load(), refused.Load())
	if made.Load() == 0 {
		t.Error("no copy was made")
	}
	if all, err := c.Sandboxes(ctx); err != nil || len(all) > 0 {
		t.Errorf("sandboxes are left: %v, %v", all, err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.State, "durable", "*", "records", "*")); len(left) > 0 {
		t.Errorf("records are left on disk: %v", left)
	}
}

// forkOf makes a copy of a checkpoint that may be gone.
func forkOf(ctx context.Context, b *box, k kept) (*box, error) {
	made, err := b.c.Fork(ctx, k.id, 1, name("sb"))
	if err != nil {
		return nil, err
	}
	f := &box{k: b.k, c: b.c, sb: made.Sandboxes[0], seen: b.seen, origin: k}
	if err := f.rejoin(ctx); err != nil {
		return nil, fmt.Errorf("join copy %s: %w", f.sb.ID, err)
	}
	return f, f.compare(ctx, &f.origin)
}
