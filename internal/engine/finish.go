package engine

import (
	"errors"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// unfinished is a checkpoint whose processes run again and whose pages are still
// in an arena: its zygotes are to be made.
type unfinished struct {
	body       *body
	checkpoint *checkpoint
	capture    *process.Capture
	arena      *memory.Arena
	steps      *stages
	epoch      int             // of the body's finishing
	after      <-chan struct{} // closed when the checkpoint before it is finished
	done       chan struct{}
	async      bool   // nobody waits for the outcome
	keep       bool   // it is to be durable
	since      string // the checkpoint that the body descended from
}

// mostUnfinished is how many checkpoints of one body may be unfinished. The
// next one waits before it stops anything: each holds its pages twice.
const mostUnfinished = 3

// finishing is the order in which the checkpoints of one body are finished: one
// after another, as they were taken, since each changes the base zygotes that
// the next one's pages are a difference to. Its lock is the innermost.
type finishing struct {
	slots chan struct{}
	all   sync.WaitGroup
	last  <-chan struct{} // of the checkpoint taken last; nil: none yet. Guarded by the box's lock.

	mu sync.Mutex
	// broken counts how often the bases were dropped: what was captured before
	// is of no use then, and the next capture, which sees it, is a full one.
	broken, seen int
	stale        bool // the next capture is to be a full one, though the bases are good
}

func newFinishing() *finishing { return &finishing{slots: make(chan struct{}, mostUnfinished)} }

// epoch makes the next capture a full one if the bases were dropped, and says
// which bases it belongs to. It is called on the body's thread.
func (f *finishing) epoch(live *process.Live) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stale || f.seen != f.broken {
		f.seen, f.stale = f.broken, false
		live.Discard()
	}
	return f.broken
}

// valid reports whether what was captured belongs to the bases of now.
func (f *finishing) valid(epoch int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken == epoch
}

// fail says that the bases were dropped.
func (f *finishing) fail() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken++
}

// lost says that a capture came to nothing.
func (f *finishing) lost() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale = true
}

// queue puts a checkpoint behind those that are unfinished. The caller holds
// the box's lock.
func (u *unfinished) queue() {
	f := u.body.finishing
	u.after, u.done = f.last, make(chan struct{})
	f.last = u.done
	f.all.Add(1)
}

// drop gives back everything of a checkpoint that comes to nothing. Its pages
// were marked as seen, so the next capture is a full one.
func (u *unfinished) drop() {
	u.body.finishing.lost()
	u.checkpoint.discard(u.capture)
	u.body.family.arenas.give(u.arena)
}

// finish makes the zygotes of a checkpoint that is in the tree, once those before it
// have theirs. If that fails, the checkpoint leaves the tree again.
func (e *Engine) finish(b *box, u *unfinished) {
	f, c := u.body.finishing, u.checkpoint
	defer func() {
		close(u.done)
		f.all.Done()
		<-f.slots
	}()
	if u.after != nil {
		<-u.after
	}
	u.steps.last = time.Now()
	err := u.zygotes()
	if err == nil {
		c.changes = changesOf(u.capture, u.since)
	}
	u.capture.Close()
	e.family.arenas.give(u.arena)
	u.steps.done("zygotes")
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

// zygotes brings the bases up to date and forks them.
func (u *unfinished) zygotes() (err error) {
	if !u.body.finishing.valid(u.epoch) {
		return fault.New(fault.Internal, "the checkpoint before it, which it is a difference to, has failed")
	}
	if err := u.capture.KeepShared(u.body.family.files.file); err != nil {
		return err
	}
	u.checkpoint.zygotes, err = u.body.updateZygotes(u.capture, u.checkpoint.snapshot)
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
