package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

var (
	operations = flag.Int("soak", 200, "random operations")
	sandboxes  = flag.Int("soakboxes", 8, "sandboxes")
	soakSeed   = flag.Uint64("soakseed", 0, "seed; 0 draws one")
)

// workers do operations at a time.
const workers = 4

func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	d := testdaemon.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &soak{d: d, kills: kills{d: d}, did: map[string]int{}}
	if err := s.warmUp(ctx, rand.New(rand.NewPCG(seed, 0))); err != nil {
		t.Fatal(err)
	}
	before := take(d)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			w := &worker{soak: s, r: rand.New(rand.NewPCG(seed, uint64(i)+1)), c: d.Dial(), most: max(*sandboxes/workers, 2)}
			if errs[i] = w.work(ctx); errs[i] != nil {
				cancel() // the others' errors are of that
			}
		})
	}
	wg.Wait()
	t.Logf("%v; the node was killed %d times", s.did, s.kills.node)
	for i, err := range errs {
		if err != nil && (!errors.Is(err, context.Canceled) || i == 0) {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	if t.Failed() {
		return
	}
	if err := settles(d, before); err != nil {
		t.Error(err)
	}
	after := take(d)
	t.Logf("before %v\nafter  %v", before, after)
	t.Logf("memory of the supervisor at each quarter, in KiB: %v", s.flat)
	// It holds warm memory for captures, so it is compared with itself once
	// it has met everything.
	if half := s.flat[1]; *operations >= 1000 && max(s.flat[3], after["supervisor KiB"]) > half*5/4+32<<10 {
		t.Errorf("the supervisor grows: %v KiB, in the end %d", s.flat, after["supervisor KiB"])
	}
}

// soak is one run.
type soak struct {
	d     *testdaemon.Daemon
	begun atomic.Int64 // operations

	mu    sync.Mutex
	kills kills
	did   map[string]int
	flat  []int64 // KiB of the supervisor, at each quarter of the operations
}

// warmUp does each thing once, so that what stands ready afterwards is there.
func (s *soak) warmUp(ctx context.Context, r *rand.Rand) error {
	w := &worker{soak: s, r: r, c: s.d.Dial(), most: 2}
	b, err := newBox(ctx, s.d, w.c)
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return b.write(ctx, r) },
		func() error { return b.checkpoint(ctx) },
		func() error { return b.rollback(ctx, r) },
		func() error {
			f, err := b.fork(ctx, r)
			if err != nil {
				return err
			}
			return f.remove(ctx)
		},
		func() error { return b.remove(ctx) },
	} {
		if err := do(); err != nil {
			return fmt.Errorf("warm up: %w", err)
		}
	}
	time.Sleep(time.Second) // what ends in the background is not counted as what was there
	return nil
}

// worker has sandboxes of its own.
type worker struct {
	*soak
	r     *rand.Rand
	c     *client.Client
	most  int // sandboxes
	boxes []*box
}

// work does operations until all are done, verifies each sandbox once more and
// removes them.
func (w *worker) work(ctx context.Context) error {
	for len(w.boxes) < w.most {
		b, err := newBox(ctx, w.d, w.c)
		if err != nil {
			return err
		}
		w.boxes = append(w.boxes, b)
	}
	for {
		n := int(w.begun.Add(1))
		if n > *operations {
			break
		}
		if n%max(*operations/4, 1) == 0 {
			kib := take(w.d)["supervisor KiB"]
			w.mu.Lock()
			w.flat = append(w.flat, kib)
			w.mu.Unlock()
		}
		if n%killEvery == 0 {
			w.mu.Lock()
			w.kills.kill(w.r) // the others go on meanwhile
			w.mu.Unlock()
		}
		b := w.boxes[w.r.IntN(len(w.boxes))]
		what, err := w.operation(ctx, b)
		if err == nil && what != "remove" {
			_, err = b.verify(ctx)
		}
		if err != nil {
			return fmt.Errorf("operation %d, %s of %s after %d steps: %w", n, what, b.sb.ID, b.steps, err)
		}
		w.mu.Lock()
		w.did[what]++
		w.mu.Unlock()
	}
	var errs []error
	for _, b := range w.boxes {
		_, err := b.verify(ctx)
		errs = append(errs, err, b.remove(ctx))
	}
	return errors.Join(errs...)
}

// killEvery so many operations the node is killed.
const killEvery = 60

// operation does one thing to a sandbox.
func (w *worker) operation(ctx context.Context, b *box) (what string, err error) {
	if len(b.kept) > mostCheckpoints {
		return "forget", b.forget(ctx, 0)
	}
	switch k := w.r.IntN(100); {
	case k < 30:
		return "write", b.write(ctx, w.r)
	case k < 55 || len(b.kept) == 0:
		return "checkpoint", b.checkpoint(ctx)
	case k < 72:
		return "rollback", b.rollback(ctx, w.r)
	case k < 78:
		return "fork", w.fork(ctx, b)
	case k < 85:
		return "forget", b.forget(ctx, w.r.IntN(len(b.kept)))
	case k < 91:
		return "run", b.run(ctx, w.r)
	case k < 94:
		return "join again", b.voice.again(ctx)
	case k < 97:
		return "kill of a client", b.killClient(ctx, w.r)
	default:
		return "remove", w.replace(ctx, b)
	}
}

// fork makes another sandbox, in place of one if there are enough.
func (w *worker) fork(ctx context.Context, b *box) error {
	f, err := b.fork(ctx, w.r)
	if err != nil {
		return err
	}
	if len(w.boxes) < w.most {
		w.boxes = append(w.boxes, f)
		return nil
	}
	for i, old := range w.boxes {
		if old != b {
			w.boxes[i] = f
			return old.remove(ctx)
		}
	}
	return f.remove(ctx)
}

// replace removes a sandbox and makes one from the template.
func (w *worker) replace(ctx context.Context, b *box) error {
	if err := b.remove(ctx); err != nil {
		return err
	}
	f, err := newBox(ctx, w.d, w.c)
	if err != nil {
		return err
	}
	for i := range w.boxes {
		if w.boxes[i] == b {
			w.boxes[i] = f
		}
	}
	return nil
}
