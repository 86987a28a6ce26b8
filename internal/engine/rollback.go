package engine

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Rollback makes the sandbox's next incarnation from one of its checkpoints, or from
// the one that it was forked from.
// Until the new one stands complete, the old one goes on.
func (e *Engine) Rollback(ctx context.Context, r control.CheckpointRef) (control.Rebirth, []*os.File, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return control.Rebirth{}, nil, fault.New(fault.NotFound, "no sandbox %q", r.Sandbox)
	}
	c, release, err := e.target(b, r.Checkpoint)
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	defer release()
	if err := c.acquire(ctx); err != nil {
		return control.Rebirth{}, nil, err
	}
	defer c.release()
	begin, steps := time.Now(), newStages()
	defer e.standbys.engage()()
	next := e.standbys.take(b, c.id)
	steps.done("standby") // one that is being built is waited for
	if next == nil {
		next, err = e.restore(b, c, steps, nil)
	}
	if err == nil {
		count := e.discount(b)
		if err = next.release(); err != nil {
			count()
			next.abandon()
			err = errors.Join(err, e.family.store.Remove(next.body.upper))
		}
	}
	if err != nil {
		return control.Rebirth{}, nil, fault.New(fault.KindOf(err), "roll sandbox %s back to %s: %w", b.id, r.Checkpoint, err)
	}
	steps.done("release")
	old := b.body
	b.body = next.body
	next.body.succeed(old)
	b.generation++
	b.suspended = ""
	b.tree.MoveTo(c.id) // an origin is not in it
	live, files, err := e.install(b, next)
	elapsed := time.Since(begin)
	e.watch(b, next.body)
	if old != nil {
		e.retire(b, old)
	}
	e.standbys.moved(b, b.tree.At(), b.tree.Parent(b.tree.At()))
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	return control.Rebirth{Sandbox: b.describeReborn(live), ElapsedNS: elapsed.Nanoseconds(), StageNS: steps.ns}, files, nil
}

// discount has what the old body has written not count against the sandbox's disk limit
// any more, before the new one writes.
func (e *Engine) discount(b *box) (undo func()) {
	if b.body == nil {
		return func() {}
	}
	undo, err := e.family.store.Discount(b.body.upper)
	if err != nil {
		e.log.Warn("what is rolled back counts until it is deleted", "sandbox", b.id, "error", err)
		return func() {}
	}
	return undo
}
