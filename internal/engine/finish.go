package engine

import (
	"errors"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tree"
)

// unfinished is a checkpoint whose processes run again and whose pages are still
// in an arena: its zygotes are to be made.
type unfinished struct {
	body       *body
	checkpoint *checkpoint
	capture    *process.Capture
	arena      *memory.Arena
	steps      *stages
	epoch      int // of the body's finishing
	turn       *turn
	after      <-chan struct{} // closed when the checkpoint before it is finished
	done       chan struct{}
	async      bool   // nobody waits for the outcome
	keep       bool   // it is to be durable
	since      string // the checkpoint that the body descended from
}

// drop gives back everything of a checkpoint that comes to nothing. Its pages
// were marked as seen, so the next capture is a full one.
func (u *unfinished) drop() {
	u.body.finishing.lost()
	u.checkpoint.discard(u.capture)
	u.body.family.arenas.give(u.arena)
}

// finish makes the zygotes of a checkpoint that is in the tree, once those before it
// have theirs and it is due. One that was removed before gets none: only the bases
// learn what was captured. If that fails, the checkpoint leaves the tree again.
func (e *Engine) finish(b *box, n *tree.Node[*checkpoint], u *unfinished) {
	f, c := u.body.finishing, u.checkpoint
	defer f.finished(u)
	if u.after != nil {
		<-u.after
	}
	select {
	case <-u.turn.due:
	case <-c.removed:
	}
	useless := b.tree.Useless(n)
	u.steps.last = time.Now()
	err := u.zygotes(useless)
	if err == nil && !useless {
		c.changes = changesOf(u.capture, u.since)
	}
	u.capture.Close()
	e.family.arenas.give(u.arena)
	u.steps.done("zygotes")
	if err == nil && useless {
		close(c.made) // nobody waits for it
		return
	}
	if err == nil {
		c.ready(u.steps)
		if b.tree.At() == c.id {
			e.standbys.took(b, c.id, b.tree.Parent(c.id), time.Now())
		}
		if u.keep {
			_, _ = e.keep(b, c) // it is there, unless it was removed already
		}
		return
	}
	if f.valid(u.epoch) { // the bases may be half new
		u.body.dropBases()
		f.fail()
	}
	c.fail(err)
	if err := b.tree.Remove(c.id); err != nil && !fault.Is(err, fault.NotFound) {
		e.log.Error("remove a failed checkpoint", "checkpoint", c.id, "error", err)
	}
	if u.async {
		e.events.CheckpointFailed(control.CheckpointFailed{Sandbox: b.id, Checkpoint: c.id, Reason: err.Error()})
	}
}

// zygotes brings the bases up to date and forks them. Of a useless checkpoint
// nothing but the bases is needed.
func (u *unfinished) zygotes(useless bool) (err error) {
	if !u.body.finishing.valid(u.epoch) {
		return fault.New(fault.Internal, "the checkpoint before it, which it is a difference to, has failed")
	}
	if useless {
		_, err := u.body.updateZygotes(u.capture, u.checkpoint.snapshot, false)
		return errors.Join(err, failZygotes.Hit())
	}
	if err := u.capture.KeepShared(u.body.family.files.file); err != nil {
		return err
	}
	u.checkpoint.zygotes, err = u.body.updateZygotes(u.capture, u.checkpoint.snapshot, true)
	return errors.Join(err, failZygotes.Hit())
}

// keep has a checkpoint made durable, in the background, if it is not or about
// to be. done is closed when it is, or cannot be.
func (e *Engine) keep(b *box, c *checkpoint) (done <-chan struct{}, err error) {
	if !e.keeper.on {
		return nil, fault.New(fault.Unsupported, "nothing here makes checkpoints durable")
	}
	_, release, err := b.tree.Use(c.id)
	if err != nil { // removed meanwhile
		return nil, err
	}
	c.mu.Lock()
	done = c.keeping
	if done != nil && c.report.Durable != control.DurableFailed {
		c.mu.Unlock()
		release()
		return done, nil
	}
	c.keeping = make(chan struct{})
	done = c.keeping
	c.report.Durable, c.report.DurableReason, c.report.DurableKind = control.DurablePending, "", ""
	c.mu.Unlock()
	e.keeper.add(b, c, release)
	return done, nil
}
