package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
)

// standbys keeps finished bodies for rollbacks that are likely to come: one for
// the checkpoint that a sandbox was checkpointed at or rolled back to last. Such
// a rollback then only lets the processes go. A standby is built in the
// background at the lowest priority, by one builder at a time, and is only a
// matter of speed: everything is right without any.
//
// Its own lock is taken with or without a box's, and no box's is taken under it.
type standbys struct {
	engine *Engine
	most   int // how many are kept

	mu       sync.Mutex
	closed   bool
	all      []*standby // in the order of their last wish; the oldest goes first
	building *standby
	wanted   []wish     // the latest last
	changed  *sync.Cond // of building and wanted
	wake     chan struct{}
	done     chan struct{}
}

// settleTime is how long the builder leaves the processors to what a checkpoint
// or rollback has just set going.
const settleTime = 10 * time.Millisecond

// wish asks for a standby of a checkpoint.
type wish struct {
	box        *box
	checkpoint string // id
}

// standby is a body that stands ready, or is being built.
type standby struct {
	wish
	built   chan struct{} // closed when it is, or has come to nothing
	pace    pace
	reborn  *reborn
	dropped bool // comes to nothing when built
}

// mostStandbys bounds them in a family. One costs about 1.5 MB, most of it page
// tables.
const mostStandbys = 16

func newStandbys(e *Engine, most int) *standbys {
	s := &standbys{engine: e, most: most, wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	go s.run()
	return s
}

// want asks for a standby of a checkpoint, in place of the one that the
// sandbox has.
func (s *standbys) want(b *box, checkpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.most == 0 {
		return
	}
	s.wanted = slices.DeleteFunc(s.wanted, func(w wish) bool { return w.box == b })
	s.wanted = append(s.wanted, wish{b, checkpoint})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the body that stands ready for a checkpoint, or nil. One that is
// being built is waited for, since that is faster than to begin anew.
func (s *standbys) take(b *box, checkpoint string) *reborn {
	s.mu.Lock()
	w := wish{b, checkpoint}
	s.wanted = slices.DeleteFunc(s.wanted, func(o wish) bool { return o == w }) // not begun: to begin now is faster
	s.changed.Broadcast()
	if x := s.building; x != nil && x.wish == w {
		s.mu.Unlock()
		x.pace.waited()
		<-x.built
		s.mu.Lock()
	}
	var r *reborn
	for i, x := range s.all {
		if x.wish == w {
			s.all = slices.Delete(s.all, i, i+1)
			r = x.reborn
			break
		}
	}
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	select {
	case <-r.body.inc.Done(): // killed while it stood, for memory perhaps
		s.engine.abandon(r)
		return nil
	default:
		return r
	}
}

// drop gives up the standbys of a sandbox; of one checkpoint, if it is named.
// It returns when they are gone.
func (s *standbys) drop(b *box, checkpoint string) {
	match := func(w wish) bool { return w.box == b && (checkpoint == "" || w.checkpoint == checkpoint) }
	s.mu.Lock()
	s.wanted = slices.DeleteFunc(s.wanted, match)
	s.changed.Broadcast()
	building := s.building
	if building != nil && match(building.wish) {
		building.dropped = true
	} else {
		building = nil
	}
	var gone []*standby
	s.all = slices.DeleteFunc(s.all, func(x *standby) bool {
		if match(x.wish) {
			gone = append(gone, x)
			return true
		}
		return false
	})
	s.mu.Unlock()
	if building != nil {
		<-building.built
	}
	for _, x := range gone {
		s.engine.abandon(x.reborn)
	}
}

// wait waits until all that is wanted is built.
func (s *standbys) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.building != nil || len(s.wanted) > 0 {
		s.changed.Wait()
	}
}

// close gives up all standbys and ends the builder.
func (s *standbys) close() {
	s.mu.Lock()
	s.closed = true
	s.wanted = nil
	s.changed.Broadcast()
	if s.building != nil {
		s.building.dropped = true
	}
	gone := s.all
	s.all = nil
	close(s.wake)
	s.mu.Unlock()
	<-s.done
	for _, x := range gone {
		s.engine.abandon(x.reborn)
	}
}

// run builds what is wanted.
func (s *standbys) run() {
	defer close(s.done)
	for range s.wake {
		time.Sleep(settleTime)
		for s.step() {
		}
	}
}

// step builds the standby that was wanted last.
func (s *standbys) step() bool {
	s.mu.Lock()
	n := len(s.wanted)
	if n == 0 {
		s.mu.Unlock()
		return false
	}
	w := s.wanted[n-1]
	s.wanted = s.wanted[:n-1]
	s.changed.Broadcast()
	x := &standby{wish: w, built: make(chan struct{})}
	var gone []*standby
	have := false
	s.all = slices.DeleteFunc(s.all, func(o *standby) bool {
		if o.box != w.box {
			return false
		}
		if o.checkpoint == w.checkpoint {
			have = true
			return false
		}
		gone = append(gone, o)
		return true
	})
	for len(s.all) >= s.most && !have {
		gone = append(gone, s.all[0])
		s.all = s.all[1:]
	}
	if !have {
		s.building = x
	}
	s.mu.Unlock()
	for _, o := range gone {
		s.engine.abandon(o.reborn)
	}
	if have {
		return true
	}
	r, err := s.engine.prebuild(x)
	s.mu.Lock()
	s.building = nil
	s.changed.Broadcast()
	keep := err == nil && !x.dropped
	if keep {
		x.reborn = r
		s.all = append(s.all, x)
	}
	s.mu.Unlock()
	if err == nil && !keep {
		s.engine.abandon(r)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		s.engine.log.Debug("no standby", "sandbox", w.box.id, "checkpoint", w.checkpoint, "error", err)
	}
	close(x.built)
	return true
}

// prebuild makes the body of a standby.
func (e *Engine) prebuild(x *standby) (*reborn, error) {
	if !machineMemory().toSpare() {
		return nil, fault.New(fault.Exhausted, "memory is short")
	}
	n, release, err := x.box.tree.Use(x.checkpoint)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := n.Data.await(); err != nil {
		return nil, err
	}
	return e.restore(x.box, n.Data, newStages(), &x.pace)
}

// abandon ends a body that nobody will use, and removes its files.
func (e *Engine) abandon(r *reborn) {
	r.abandon()
	if err := e.family.store.Remove(r.body.upper); err != nil {
		e.log.Error("remove a body's files", "upper", r.body.upper, "error", err)
	}
}
