package engine

import (
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
)

// standbys keeps finished bodies for rollbacks and forks that are likely to
// come. Such a one then only lets the processes go. It has bodies for the
// checkpoint that a sandbox stands at and for that one's parent, one each, and
// for checkpoints that a client names, as many as it asks for.
//
// A standby is built in the background at the lowest priority, by one builder at
// a time and not while a client waits for bodies, and is only a matter of
// speed: everything is right without any.
//
// Its own lock is taken with or without a box's, and no box's is taken under it.
type standbys struct {
	engine *Engine
	most   int // how many are kept

	mu       sync.Mutex
	closed   bool
	wishes   []*wish            // in the order of their last use, the latest last
	taken    map[*box]time.Time // when the last checkpoint of a sandbox that was not used since
	building *standby
	waiting  int        // clients that make bodies themselves
	changed  *sync.Cond // of building and wishes
	wake     chan struct{}
	done     chan struct{}
}

// settleTime is how long the builder leaves the processors to what a checkpoint
// or rollback has just set going.
const settleTime = 10 * time.Millisecond

// MostStandbys bounds them in a family. One costs about 1.5 MB, most of it page
// tables.
const MostStandbys = 64

// wish is how many bodies of a checkpoint are to stand ready.
type wish struct {
	box        *box
	checkpoint string    // id
	near       bool      // the sandbox stands at it, or at a child of it
	named      int       // as many were asked for
	failed     bool      // not tried again until it is wished again
	after      time.Time // it is not begun before
	ready      []*reborn
}

func (w *wish) count() int {
	if w.near {
		return max(w.named, 1)
	}
	return w.named
}

func (w *wish) is(b *box, checkpoint string) bool { return w.box == b && w.checkpoint == checkpoint }

// standby is a body that is being built.
type standby struct {
	wish    *wish
	built   chan struct{} // closed when it is, or has come to nothing
	pace    pace
	dropped bool // comes to nothing when built
}

func newStandbys(e *Engine, most int) *standbys {
	s := &standbys{engine: e, most: most, taken: map[*box]time.Time{}, wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	go s.run()
	return s
}

// moved says that a sandbox stands at another checkpoint now. What stands ready
// for others goes, unless it was asked for by name.
func (s *standbys) moved(b *box, at, parent string) { s.move(b, at, parent, time.Time{}) }

// took says that a checkpoint was taken, which a sandbox stands at. Of those that
// follow one another quickly none gets a body: nobody goes back to them before the
// next is there.
func (s *standbys) took(b *box, at, parent string, now time.Time) {
	var after time.Time
	s.mu.Lock()
	if last, ok := s.taken[b]; ok && now.Sub(last) < quickly {
		after = now.Add(2 * now.Sub(last))
	}
	if !s.closed {
		s.taken[b] = now
	}
	s.mu.Unlock()
	s.move(b, at, parent, after)
}

// quickly is how long after one another checkpoints come at most that get no bodies
// before there was a pause of twice that.
const quickly = 200 * time.Millisecond

// move makes two checkpoints those that bodies stand ready for, but not before a time.
func (s *standbys) move(b *box, at, parent string, after time.Time) {
	s.mu.Lock()
	if s.closed || s.most == 0 {
		s.mu.Unlock()
		return
	}
	for _, w := range s.wishes {
		if w.box == b {
			w.near = false
		}
	}
	for _, id := range []string{parent, at} {
		if id != "" {
			w := s.use(b, id)
			w.near, w.after = true, after
		}
	}
	gone := s.prune()
	s.poke()
	s.mu.Unlock()
	s.abandon(gone)
}

// name asks for n bodies of a checkpoint. 0 takes that back.
func (s *standbys) name(b *box, checkpoint string, n int) error {
	if n < 0 || n > MostStandbys {
		return fault.New(fault.Invalid, "%d standbys: not 0 to %d", n, MostStandbys)
	}
	s.mu.Lock()
	if s.closed || s.most == 0 {
		s.mu.Unlock()
		return nil
	}
	w := s.use(b, checkpoint)
	w.named, w.after = n, time.Time{}
	gone := s.prune()
	s.poke()
	s.mu.Unlock()
	s.abandon(gone)
	return nil
}

// use returns the wish for a checkpoint, as the one used last. mu is held.
func (s *standbys) use(b *box, checkpoint string) *wish {
	w := &wish{box: b, checkpoint: checkpoint}
	s.wishes = slices.DeleteFunc(s.wishes, func(o *wish) bool {
		if o.is(b, checkpoint) {
			w = o
			return true
		}
		return false
	})
	w.failed = false
	s.wishes = append(s.wishes, w)
	return w
}

// prune takes out what is wished no longer, and of what is wished the oldest
// that are too many. mu is held.
func (s *standbys) prune() (gone []*reborn) {
	total := 0
	for _, w := range s.wishes {
		for len(w.ready) > w.count() {
			gone = append(gone, w.ready[0])
			w.ready = w.ready[1:]
		}
		total += len(w.ready)
	}
	for _, w := range s.wishes {
		for ; total > s.most && len(w.ready) > 0; total-- {
			gone = append(gone, w.ready[0])
			w.ready = w.ready[1:]
		}
	}
	if x := s.building; x != nil && x.wish.count() == 0 {
		x.dropped = true
	}
	s.wishes = slices.DeleteFunc(s.wishes, func(w *wish) bool { return w.count() == 0 })
	s.changed.Broadcast()
	return gone
}

func (s *standbys) abandon(gone []*reborn) {
	for _, r := range gone {
		s.engine.abandon(r)
	}
}

// poke wakes the builder. mu is held.
func (s *standbys) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// engage keeps the builder from beginning anything until release is called: a
// client waits for bodies.
func (s *standbys) engage() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting--
		if !s.closed {
			s.poke()
		}
	}
}

// take returns a body that stands ready for a checkpoint, or nil. One that is
// being built is waited for, since that is faster than to begin anew.
func (s *standbys) take(b *box, checkpoint string) *reborn {
	s.mu.Lock()
	delete(s.taken, b)
	if x := s.building; x != nil && x.wish.is(b, checkpoint) && len(x.wish.ready) == 0 {
		s.mu.Unlock()
		x.pace.waited()
		<-x.built
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	for _, w := range s.wishes {
		if !w.is(b, checkpoint) {
			continue
		}
		for len(w.ready) > 0 {
			r := w.ready[0]
			w.ready = w.ready[1:]
			select {
			case <-r.body.inc.Done(): // killed while it stood, for memory perhaps
				s.engine.background(func() { s.engine.abandon(r) })
			default:
				return r
			}
		}
	}
	return nil
}

// drop gives up the standbys of a sandbox; of one checkpoint, if it is named.
// It returns when they are gone.
func (s *standbys) drop(b *box, checkpoint string) {
	gone, building := s.unwish(b, checkpoint)
	if building != nil {
		<-building.built
	}
	s.abandon(gone)
}

// unwish takes the wishes of a sandbox back, or those for one checkpoint. What
// stands ready for them is the caller's to abandon; what is being built goes when it
// is.
func (s *standbys) unwish(b *box, checkpoint string) (gone []*reborn, building *standby) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.wishes {
		if w.box == b && (checkpoint == "" || w.checkpoint == checkpoint) {
			w.near, w.named = false, 0
		}
	}
	if checkpoint == "" {
		delete(s.taken, b)
	}
	gone = s.prune()
	if building = s.building; building != nil && !building.dropped {
		building = nil
	}
	return gone, building
}

// shed gives up half of what stands ready, of the checkpoints that were used
// longest ago first, because memory is short. It is built again when its
// checkpoint is used next.
func (s *standbys) shed() (n int) {
	s.mu.Lock()
	for _, w := range s.wishes {
		n += len(w.ready)
	}
	n = (n + 1) / 2
	var gone []*reborn
	for _, w := range s.wishes {
		k := min(n-len(gone), len(w.ready))
		if k > 0 {
			gone, w.ready = append(gone, w.ready[:k]...), w.ready[k:]
		}
		w.failed = true // none is built as long as memory is short
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	s.abandon(gone)
	return len(gone)
}

// wait waits until all that is wished is built.
func (s *standbys) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.building != nil || s.next(time.Time{}) != nil {
		s.changed.Wait()
	}
}

// close gives up all standbys and ends the builder.
func (s *standbys) close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.wishes {
		w.near, w.named = false, 0
	}
	gone := s.prune()
	close(s.wake)
	s.mu.Unlock()
	<-s.done
	s.abandon(gone)
}
