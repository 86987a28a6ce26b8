package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
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
	soakKills  = flag.Bool("soakkills", true, "kill supervisors and the daemon, and stop it, in between")
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
	s := &soak{t: t, k: newDisasters(d), did: map[string]int{}}
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
	happened := map[disaster]int{}
	for _, x := range s.k.since(0) {
		happened[x]++
	}
	t.Logf("%v; the node was killed %d times, and %v; %d sandboxes were lost as they may be", s.did, s.k.node, happened, s.lost)
	for i, err := range errs {
		if err != nil && (!errors.Is(err, context.Canceled) || i == 0) {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	if t.Failed() {
		return
	}
	if err := s.clear(t.Context(), d.Dial()); err != nil {
		t.Error(err)
	}
	if err := settles(d, before); err != nil {
		t.Error(err)
	}
	after := take(d)
	t.Logf("before %v\nafter  %v", before, after)
	t.Logf("memory of the supervisor at each quarter, in KiB: %v", s.flat)
	// It holds warm memory for captures, so it is compared with itself once
	// it has met everything.
	if half := s.flat[1]; !*soakKills && *operations >= 1000 && max(s.flat[3], after["supervisor KiB"]) > half*5/4+32<<10 {
		t.Errorf("the supervisor grows: %v KiB, in the end %d", s.flat, after["supervisor KiB"])
	}
}

// soak is one run.
type soak struct {
	t     *testing.T
	k     *disasters
	begun atomic.Int64 // operations

	mu   sync.Mutex
	did  map[string]int
	lost int
	flat []int64 // KiB of the supervisor, at each quarter of the operations
}

// warmUp does each thing once, so that what stands ready afterwards is there.
func (s *soak) warmUp(ctx context.Context, r *rand.Rand) error {
	w := &worker{soak: s, r: r, c: s.k.d.Dial(), most: 2}
	b, err := newBox(ctx, s.k, w.c)
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return b.write(ctx, r) },
		func() error { return b.checkpoint(ctx, true) },
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
		b, err := newBox(ctx, w.k, w.c)
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
			kib := take(w.k.d)["supervisor KiB"]
			w.mu.Lock()
			w.flat = append(w.flat, kib)
			w.mu.Unlock()
			w.t.Logf("%d operations: %v", n, take(w.k.d))
		}
		if err := w.disaster(n); err != nil {
			return fmt.Errorf("operation %d: %w", n, err)
		}
		i := w.r.IntN(len(w.boxes))
		if err := w.ready(ctx, i); err != nil {
			return fmt.Errorf("operation %d, of %s: %w\n%s", n, w.boxes[i].sb.ID, err, w.boxes[i].past)
		}
		b := w.boxes[i]
		what, err := w.struckOrDone(ctx, b)
		if err != nil {
			return fmt.Errorf("operation %d, %s of %s after %d steps: %w\n%s", n, what, b.sb.ID, b.steps, err, b.past)
		}
		w.mu.Lock()
		w.did[what]++
		w.mu.Unlock()
	}
	var errs []error
	for i := range w.boxes {
		err := w.ready(ctx, i)
		if err == nil {
			_, err = w.boxes[i].verify(ctx)
		}
		errs = append(errs, err, w.boxes[i].remove(ctx))
	}
	return errors.Join(errs...)
}

// Every so many operations something is killed, while the others go on.
const (
	nodeEvery       = 60
	supervisorEvery = 70
	hostEvery       = 190
	stopEvery       = 160
)

// disaster lets one happen if it is time.
func (w *worker) disaster(n int) error {
	if n%nodeEvery == 0 {
		if err := w.k.killNode(w.r); err != nil {
			return err
		}
	}
	switch {
	case !*soakKills:
	case n%hostEvery == 0:
		return w.k.strike(hostKilled, w.r)
	case n%stopEvery == 0:
		return w.k.strike(stopped, w.r)
	case n%supervisorEvery == 0:
		return w.k.strike(supervisorKilled, w.r)
	}
	return nil
}

// ready makes a sandbox one that has seen all disasters. One that was lost, as
// may be, is replaced.
func (w *worker) ready(ctx context.Context, i int) error {
	for {
		b := w.boxes[i]
		n := w.k.calm()
		err := b.catchUp(ctx)
		if errors.Is(err, errLost) {
			w.mu.Lock()
			w.lost++
			w.mu.Unlock()
			err = w.replace(ctx, b)
		}
		if len(w.k.since(n)) == 0 {
			return err
		}
	}
}

// struckOrDone does an operation and looks at the program afterwards. What a
// disaster interrupts may be done or not, and the program's state is looked at
// later.
func (w *worker) struckOrDone(ctx context.Context, b *box) (string, error) {
	n, had := b.seen, map[string]string{} // what it said at each checkpoint
	for _, k := range append(slices.Clone(b.kept), b.suspension) {
		had[k.id] = k.said
	}
	what, err := w.operation(ctx, b)
	b.past.note("%s, at %s: %v", what, b.at, err)
	if err == nil && what != "remove" {
		_, err = b.verify(ctx)
	}
	if len(w.k.since(n)) == 0 {
		return what, err
	}
	b.unsure = true
	// What was taken, or asked after a restore, may be of the program as it came back.
	for i := range b.kept {
		b.kept[i].said = had[b.kept[i].id]
	}
	b.suspension.said = had[b.suspension.id]
	if what != "remove" || err == nil {
		return what, nil
	}
	w.k.calm()
	return what, w.replace(ctx, b) // to the end, then
}

// clear removes sandboxes that are nobody's: the call that made them was cut
// off.
func (s *soak) clear(ctx context.Context, c *client.Client) error {
	all, err := c.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, sb := range all {
		err = errors.Join(err, sb.Remove(ctx, true))
	}
	return err
}

// operation does one thing to a sandbox.
func (w *worker) operation(ctx context.Context, b *box) (what string, err error) {
	if len(b.kept) > mostCheckpoints {
		return "forget", b.forget(ctx, 0)
	}
	switch k := w.r.IntN(100); {
	case k < 30:
		return "write", b.write(ctx, w.r)
	case k < 50 || len(b.kept) == 0:
		return "checkpoint", b.checkpoint(ctx, w.r.IntN(4) == 0)
	case k < 54:
		return "wait", b.wait(ctx, w.r)
	case k < 58:
		return "suspension", b.stand(ctx, w.r.IntN(2) == 0)
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
	f, err := newBox(ctx, w.k, w.c)
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
