package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// The steps of making a checkpoint durable that can be made to fail.
var (
	failKeep = failpoint.New("engine.keep.begun")
	failKept = failpoint.New("engine.keep.written")
)

// keeper makes checkpoints durable, one after another in the order in which
// they were taken, by the worker. A worker that dies is replaced by the host; what it was
// writing is tried once more. What failed for want of room is tried again, see retry.go.
//
// Its lock is taken with or without a box's, and no box's is taken under it.
type keeper struct {
	engine *Engine
	on     bool // there is, or will be, a worker

	mu      sync.Mutex
	changed *sync.Cond // of all below
	client  *worker.Client
	queue   []*keeping
	busy    *keeping
	retries retries
	closed  bool
	done    chan struct{}
}

// keeping is a checkpoint that is being made durable, or waits for that.
type keeping struct {
	box        *box
	checkpoint *checkpoint
	release    func() // of the node
	cancel     context.CancelFunc
}

// mostUnkept is how many checkpoints of one sandbox may wait to be written.
// The next one waits before it stops anything: the disk is slower than its
// caller.
const mostUnkept = 16

// workerTime is how long a checkpoint waits for a worker when none runs.
const workerTime = time.Minute

func newKeeper(e *Engine, on bool) *keeper {
	k := &keeper{engine: e, on: on, done: make(chan struct{})}
	k.changed = sync.NewCond(&k.mu)
	go k.run()
	return k
}

// use makes a worker the one that is asked from now on.
func (k *keeper) use(c *worker.Client) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		_ = c.Close()
		return
	}
	old := k.client
	k.client = c
	for _, l := range k.retries.lines() {
		k.hasten(l, 0)
	}
	k.changed.Broadcast()
	if old != nil {
		go func() { _ = old.Close() }()
	}
}

// worker returns the worker, and waits for one if none runs.
func (k *keeper) worker(ctx context.Context) (*worker.Client, error) {
	if !k.on {
		return nil, fault.New(fault.Unsupported, "nothing here makes checkpoints durable")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, workerTime, fault.New(fault.Unavailable, "no worker has come for %s", workerTime))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.changed.Broadcast()
	})
	defer stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		if k.closed {
			return nil, fault.New(fault.Unavailable, "the supervisor is ending")
		}
		if k.client != nil {
			select {
			case <-k.client.Done():
				k.client = nil
			default:
				return k.client, nil
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		k.changed.Wait()
	}
}

// admit waits until a sandbox may take another checkpoint that is to be kept.
func (k *keeper) admit(b *box) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.closed {
		n := 0
		for _, x := range k.queue {
			if x.box == b {
				n++
			}
		}
		if n < mostUnkept {
			return
		}
		k.changed.Wait()
	}
}

var errEnding = fault.New(fault.Unavailable, "the supervisor is ending")

// add queues a checkpoint. release is called when it is kept or has failed.
func (k *keeper) add(b *box, c *checkpoint, release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		c.notKept(errEnding, false)
		go release()
		return
	}
	k.queue = append(k.queue, &keeping{box: b, checkpoint: c, release: release})
	k.changed.Broadcast()
}

// drop gives up what waits to be written, and what is being written, where match
// says so. It returns when that is over.
func (k *keeper) drop(match func(*keeping) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.dropNow(match) { // what was about to wait, or to be queued, does so meanwhile
		k.changed.Wait()
	}
	k.arm()
	k.changed.Broadcast()
}

// dropNow is drop without the wait, and reports whether something is left that must be
// waited for. k.mu is held.
func (k *keeper) dropNow(match func(*keeping) bool) (left bool) {
	k.queue = slices.DeleteFunc(k.queue, func(x *keeping) bool {
		if match(x) {
			x.checkpoint.notKept(fault.New(fault.NotFound, "it was removed"), false)
			go x.release()
			return true
		}
		return false
	})
	k.retries.remove(match)
	if k.busy != nil && match(k.busy) {
		k.busy.cancel()
		return true
	}
	return k.retries.asks(match)
}

// wait waits until nothing is left to be written.
func (k *keeper) wait() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.closed && (k.busy != nil || len(k.queue) > 0) {
		k.changed.Wait()
	}
}

// waitFor waits until nothing of a sandbox is left to be written.
func (k *keeper) waitFor(b *box) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.closed && (k.busy != nil && k.busy.box == b || slices.ContainsFunc(k.queue, func(x *keeping) bool { return x.box == b })) {
		k.changed.Wait()
	}
}

// close gives up everything.
func (k *keeper) close() {
	k.mu.Lock()
	k.closed = true
	for _, l := range k.retries.lines() {
		l.stop()
		l.waiting = nil
	}
	for _, x := range k.queue {
		x.checkpoint.notKept(errEnding, false)
		go x.release()
	}
	k.queue = nil
	if k.busy != nil {
		k.busy.cancel()
	}
	k.changed.Broadcast()
	c := k.client
	k.client = nil
	k.mu.Unlock()
	<-k.done
	if c != nil {
		_ = c.Close()
	}
}

func (k *keeper) run() {
	defer close(k.done)
	for {
		k.mu.Lock()
		for len(k.queue) == 0 && !k.closed {
			k.changed.Wait()
		}
		if k.closed {
			k.mu.Unlock()
			return
		}
		x := k.queue[0]
		k.queue = k.queue[1:]
		k.busy = x
		ctx, cancel := context.WithCancel(context.Background())
		x.cancel = cancel
		k.mu.Unlock()
		k.step(ctx, x)
		cancel()
		k.mu.Lock()
		k.busy = nil
		k.arm()
		k.changed.Broadcast()
		k.mu.Unlock()
	}
}

// step makes one checkpoint durable and says how it went.
func (k *keeper) step(ctx context.Context, x *keeping) {
	defer x.release()
	if x.checkpoint.await() != nil {
		return // it has failed, and said so
	}
	n, err := k.write(ctx, x.checkpoint)
	switch {
	case err == nil:
		if x.checkpoint.kept(n) {
			k.engine.log.Info("a checkpoint is durable after all", "sandbox", x.box.id, "checkpoint", x.checkpoint.id)
			k.engine.evictor.mayLeaveNow()
		}
		k.mu.Lock()
		k.written(x.checkpoint)
		k.mu.Unlock()
	case ctx.Err() != nil: // it is given up
		x.checkpoint.notKept(err, false)
	default:
		again := k.mayPass(x.checkpoint, err)
		if x.checkpoint.notKept(err, again) || !again { // said once, and at last
			k.engine.log.Error("a checkpoint is not durable", "sandbox", x.box.id, "checkpoint", x.checkpoint.id, "error", err, "tried_again", again)
		}
		if again {
			k.mu.Lock()
			k.later(x, err)
			k.mu.Unlock()
		}
	}
	if r, err := k.engine.report(x.box, x.checkpoint.id); err == nil {
		k.engine.events.CheckpointKept(r)
	}
}

// write has a checkpoint written. If the worker dies meanwhile the next one
// tries once more.
func (k *keeper) write(ctx context.Context, c *checkpoint) (int64, error) {
	if err := failKeep.Hit(); err != nil {
		return 0, err
	}
	var errs []error
	for range 2 {
		w, err := k.worker(ctx)
		if err != nil {
			return 0, errors.Join(append(errs, err)...)
		}
		n, err := c.write(ctx, w)
		if err == nil {
			return n, failKept.Hit()
		}
		errs = append(errs, err)
		if !fault.Is(err, fault.Unavailable) {
			break
		}
	}
	return 0, errors.Join(errs...)
}

// forget removes the durable form of a checkpoint, if it has one.
func (k *keeper) forget(ctx context.Context, c *checkpoint) error {
	c.mu.Lock()
	tried := c.keeping != nil
	c.mu.Unlock()
	if !k.on || !tried {
		return nil
	}
	w, err := k.worker(ctx)
	if err != nil {
		return err
	}
	if err := w.Remove(ctx, c.id); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hasten(&k.retries.outside, firstRetry) // its space comes back
	return nil
}
