package engine

import (
	"context"
	"errors"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// The step of a suspension that can be made to fail, when everything else is
// done.
var failSuspend = failpoint.New("engine.suspend.written")

// Suspend takes a checkpoint whose processes do not go on. They end when it is
// durable; until then they stand, and go on if anything fails.
func (e *Engine) Suspend(ctx context.Context, r control.SuspendRequest) (control.Checkpoint, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Checkpoint{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.body == nil && b.suspended != "" { // it is: perhaps it is to leave the memory now
		e.settle(b, r.Unload)
		return e.report(b, b.suspended)
	}
	o, err := b.live()
	if err != nil {
		return control.Checkpoint{}, err
	}
	if err := b.tree.Check(r.Checkpoint, ""); err != nil {
		return control.Checkpoint{}, err
	}
	if r.Checkpoint == "" {
		return control.Checkpoint{}, fault.New(fault.Invalid, "a checkpoint without an id")
	}
	if err := e.suspend(ctx, b, o, r.Checkpoint); err != nil {
		return control.Checkpoint{}, fault.New(fault.KindOf(err), "suspend sandbox %s: %w", b.id, err)
	}
	b.body, b.suspended = nil, r.Checkpoint
	e.retire(b, o)
	e.settle(b, r.Unload)
	return e.report(b, r.Checkpoint)
}

// settle makes what is left of a suspended sandbox stand by, or leaves nothing
// of it in memory. b.mu is held.
func (e *Engine) settle(b *box, unload bool) {
	if !unload {
		e.standbys.moved(b, b.suspended, "")
		return
	}
	e.standbys.drop(b, "")
	for _, n := range b.tree.Nodes() {
		n.Data.unload()
	}
}

// suspend takes the checkpoint, makes it durable and kills the tree. b.mu is
// held.
func (e *Engine) suspend(ctx context.Context, b *box, o *body, id string) (err error) {
	if !e.keeper.on {
		return fault.New(fault.Unsupported, "nothing here makes checkpoints durable")
	}
	b.awaited.Add(1)
	defer b.awaited.Add(-1)
	o.finishing.wait()
	e.keeper.waitFor(b) // what it is a difference to comes first
	c, u, err := e.checkpoint(b, o, id, true, newStages())
	if err != nil {
		e.tend(b, o)
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		o.dropBases()
		o.finishing.fail()
		err = errors.Join(err, o.thread.do(o.live.Resume))
		c.Free()
	}()
	err = u.zygotes(false)
	if err == nil {
		c.changes = changesOf(u.capture, u.since)
	}
	u.capture.Close()
	e.family.arenas.give(u.arena)
	if err != nil {
		return err
	}
	u.steps.done("zygotes")
	c.ready(u.steps)
	c.mu.Lock()
	c.keeping = make(chan struct{})
	c.report.ID, c.report.Durable, c.report.Suspension = id, control.DurablePending, true
	c.mu.Unlock()
	size, err := e.keeper.write(ctx, c)
	if err == nil {
		err = failSuspend.Hit()
	}
	if err == nil {
		err = b.tree.Add(id, "", c)
	}
	if err != nil {
		return errors.Join(err, e.keeper.forget(context.WithoutCancel(ctx), c))
	}
	c.kept(size)
	b.sessions.suspend(c.sessions) // before their processes end, which is no end of theirs
	return o.thread.do(func() error { o.live.Kill(); return nil })
}
