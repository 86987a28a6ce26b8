package engine

import (
	"context"
	"slices"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// run builds what is wished.
func (s *standbys) run() {
	defer close(s.done)
	var later <-chan time.Time // when something may be begun that may not be yet
	for {
		select {
		case _, open := <-s.wake:
			if !open {
				return
			}
			time.Sleep(settleTime)
		case <-later:
		}
		later = nil
		built, at := s.step()
		for built {
			built, at = s.step()
		}
		if !at.IsZero() {
			later = time.After(time.Until(at))
		}
	}
}

// next is the wish that is short of a body and was used last, of those that may be
// fulfilled at a time; zero: of all. mu is held.
func (s *standbys) next(now time.Time) *wish {
	total := 0
	for _, w := range s.wishes {
		total += len(w.ready)
	}
	for i := len(s.wishes) - 1; i >= 0; i-- {
		w := s.wishes[i]
		if w.failed || len(w.ready) >= w.count() || !now.IsZero() && now.Before(w.after) {
			continue
		}
		// For one more an older one has to go.
		if total >= s.most && !slices.ContainsFunc(s.wishes[:i], func(o *wish) bool { return len(o.ready) > 0 }) {
			continue
		}
		return w
	}
	return nil
}

// step builds one body, if one may be built now. If not, but later, it says when.
func (s *standbys) step() (built bool, later time.Time) {
	s.mu.Lock()
	if s.waiting > 0 || s.closed { // whoever waits wakes us
		s.mu.Unlock()
		return false, time.Time{}
	}
	now := time.Now()
	w := s.next(now)
	if w == nil {
		for _, w := range s.wishes {
			if w.after.After(now) && (later.IsZero() || w.after.Before(later)) {
				later = w.after
			}
		}
		s.mu.Unlock()
		return false, later
	}
	x := &standby{wish: w, built: make(chan struct{})}
	s.building = x
	s.mu.Unlock()

	r, err := s.engine.prebuild(x)

	s.mu.Lock()
	s.building = nil
	var gone []*reborn
	switch {
	case err != nil:
		w.failed = true
	case x.dropped:
		gone = append(gone, r)
	default:
		w.ready = append(w.ready, r)
		gone = s.prune()
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	s.abandon(gone)
	close(x.built)
	if err != nil && !fault.Is(err, fault.NotFound) {
		s.engine.log.Debug("no standby", "sandbox", w.box.id, "checkpoint", w.checkpoint, "error", err)
	}
	return true, time.Time{}
}

// prebuild makes the body of a standby.
func (e *Engine) prebuild(x *standby) (*reborn, error) {
	if !machineMemory().toSpare() {
		return nil, fault.New(fault.Exhausted, "memory is short")
	}
	n, release, err := x.wish.box.tree.Use(x.wish.checkpoint)
	if err != nil {
		return nil, err
	}
	defer release()
	if !n.Data.loaded() {
		return nil, fault.New(fault.NotFound, "checkpoint %s is on disk", n.ID) // a standby is not worth reading it
	}
	if err := n.Data.acquire(context.Background()); err != nil {
		return nil, err
	}
	defer n.Data.release()
	return e.restore(x.wish.box, n.Data, newStages(), &x.pace)
}

// abandon ends a body that nobody will use, and removes its files.
func (e *Engine) abandon(r *reborn) {
	r.abandon()
	if err := e.family.store.Remove(r.body.upper); err != nil {
		e.log.Error("remove a body's files", "upper", r.body.upper, "error", err)
	}
}

// Standby asks for bodies of a checkpoint that stand ready.
func (e *Engine) Standby(_ context.Context, r control.StandbyRequest) error {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return err
	}
	n, release, err := b.tree.Use(r.Checkpoint)
	if err != nil {
		return err
	}
	defer release()
	return e.standbys.name(b, n.ID, r.Count)
}

// Standbys is how many bodies of a checkpoint stand ready.
func (e *Engine) Standbys(sandbox, checkpoint string) int {
	b, err := e.box(sandbox)
	if err != nil {
		return 0
	}
	e.standbys.mu.Lock()
	defer e.standbys.mu.Unlock()
	for _, w := range e.standbys.wishes {
		if w.is(b, checkpoint) {
			return len(w.ready)
		}
	}
	return 0
}
