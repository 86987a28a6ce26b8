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
	for range s.wake {
		time.Sleep(settleTime)
		for s.step() {
		}
	}
}

// next is the wish that is short of a body and was used last. mu is held.
func (s *standbys) next() *wish {
	total := 0
	for _, w := range s.wishes {
		total += len(w.ready)
	}
	for i := len(s.wishes) - 1; i >= 0; i-- {
		w := s.wishes[i]
		if w.failed || len(w.ready) >= w.count() {
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

// step builds one body.
func (s *standbys) step() bool {
	s.mu.Lock()
	w := s.next()
	if w == nil || s.waiting > 0 || s.closed {
		s.mu.Unlock()
		return false
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
	return true
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
