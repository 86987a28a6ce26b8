package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// Of checkpoints that follow one another quickly most are removed again soon, and
// then their zygotes were made for nothing. So they wait for a while: until somebody
// needs one of them or a later one, until so many wait, or until no other came.
const (
	// mostUnfinished is how many checkpoints of one body may be unfinished. The
	// next one waits before it stops anything: each holds its pages twice.
	mostUnfinished = 6
	// mostDeferred is how many of those may wait, though nothing else is to be done.
	mostDeferred = 3
	// deferAtMost is how long the last one waits for another.
	deferAtMost = 2 * quickly
)

// turn is when a checkpoint is finished. A checkpoint keeps its own for good, so it
// refers to nothing.
type turn struct {
	due chan struct{} // closed when that is to be at once
	// Somebody waits for it; due is closed. Guarded by the finishing's lock.
	needed, hurried bool
}

func newTurn() *turn { return &turn{due: make(chan struct{})} }

// finishing is the order in which the checkpoints of one body are finished: one
// after another, as they were taken, since each changes the base zygotes that
// the next one's pages are a difference to. Its lock is the innermost.
type finishing struct {
	slots chan struct{}
	all   sync.WaitGroup
	last  <-chan struct{} // of the checkpoint taken last; nil: none yet. Guarded by the box's lock.

	mu      sync.Mutex
	pending []*turn     // as the checkpoints were taken
	taken   time.Time   // when the last one was
	quiet   *time.Timer // makes the last one due; nil: none has waited yet
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
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, u.turn)
	now := time.Now()
	soon := now.Sub(f.taken) < quickly
	f.taken = now
	if !u.async || u.keep || u.turn.needed || !soon || u.arena.Used() > memory.ArenaSize {
		f.hurry(u.turn)
		return
	}
	if n := len(f.pending) - mostDeferred; n > 0 {
		f.hurry(f.pending[n-1])
	}
	if f.quiet == nil {
		f.quiet = time.AfterFunc(deferAtMost, f.drain)
	} else {
		f.quiet.Reset(deferAtMost)
	}
}

// hurry makes a checkpoint of the queue due, and those before it. f.mu is held.
func (f *finishing) hurry(t *turn) {
	for _, o := range f.pending {
		if !o.hurried {
			o.hurried = true
			close(o.due)
		}
		if o == t {
			return
		}
	}
}

// need makes a checkpoint due that somebody waits for.
func (f *finishing) need(t *turn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t.needed = true // if it is not in the queue yet
	if slices.Contains(f.pending, t) {
		f.hurry(t)
	}
}

// drain makes all due.
func (f *finishing) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.pending); n > 0 {
		f.hurry(f.pending[n-1])
	}
}

// wait waits until all are finished.
func (f *finishing) wait() {
	f.drain()
	f.all.Wait()
}

// finished says that a checkpoint is.
func (f *finishing) finished(u *unfinished) {
	f.mu.Lock()
	f.pending = slices.DeleteFunc(f.pending, func(t *turn) bool { return t == u.turn })
	f.mu.Unlock()
	close(u.done)
	f.all.Done()
	<-f.slots
}
