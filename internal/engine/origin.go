package engine

import (
	"context"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// origins are the checkpoints that sandboxes were forked from. A copy without a
// durable checkpoint of its own comes back at its origin, so what is durable of
// that stays as long as the copy does, whatever becomes of the sandbox it was of.
// Its lock is taken with or without a box's or the keeper's, and nothing is
// taken under it.
type origins struct {
	mu sync.Mutex
	of map[string]*origin // by the checkpoint's id
}

type origin struct {
	copies int
	// orphan: it is in no tree any more, and its durable form goes with the last
	// copy.
	orphan bool
	data   *checkpoint // of an orphan that an earlier supervisor had
}

func newOrigins() *origins { return &origins{of: map[string]*origin{}} }

// hold counts a copy of a checkpoint.
func (s *origins) hold(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of[id]
	if o == nil {
		o = &origin{}
		s.of[id] = o
	}
	o.copies++
}

// held reports whether a checkpoint has copies.
func (s *origins) held(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[id] != nil
}

// orphan says that a checkpoint leaves its tree. It reports whether it has copies,
// so that its durable form has to stay.
func (s *origins) orphan(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of[id]
	if o == nil {
		return false
	}
	o.orphan = true
	return true
}

// release takes back hold. It reports whether nobody needs the durable form any
// more.
func (s *origins) release(id string) (unwanted bool) {
	s.mu.Lock()
	o := s.of[id]
	if o == nil {
		s.mu.Unlock()
		return false
	}
	if o.copies--; o.copies > 0 {
		s.mu.Unlock()
		return false
	}
	delete(s.of, id)
	s.mu.Unlock()
	if o.data != nil {
		o.data.Free()
	}
	return o.orphan
}

// adopt is an orphan of an earlier supervisor. It is counted to no sandbox.
func (s *origins) adopt(f *family, b *box, id string) *checkpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.of[id]
	if o == nil || !o.orphan {
		return nil
	}
	if o.data == nil {
		o.data = onDisk(f, b, control.Checkpoint{ID: id, Memory: control.MemoryNone, Durable: control.DurableYes})
		o.data.quota = 0
	}
	return o.data
}

// close gives back what is in memory of orphans.
func (s *origins) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.of {
		if o.data != nil {
			o.data.Free()
			o.data = nil
		}
	}
}

// target finds what a sandbox is rolled back to: a checkpoint of its own, or the
// one that it was forked from, which is nobody's in its tree. b.mu is held.
func (e *Engine) target(b *box, ref string) (c *checkpoint, release func(), err error) {
	n, release, err := b.tree.Use(ref)
	if err == nil {
		return n.Data, release, nil
	}
	if ref == "" || ref != b.origin {
		return nil, nil, err
	}
	e.mu.Lock()
	boxes := make([]*box, 0, len(e.boxes))
	for _, o := range e.boxes {
		boxes = append(boxes, o)
	}
	e.mu.Unlock()
	for _, o := range boxes {
		if n, release, err := o.tree.Use(ref); err == nil {
			if n.ID == ref {
				return n.Data, release, nil
			}
			release()
		}
	}
	if c := e.origins.adopt(e.family, b, ref); c != nil {
		return c, func() {}, nil
	}
	return nil, nil, err
}

// forgetDurable removes the durable form of a checkpoint that leaves its tree, unless
// copies may have to come back from it.
func (e *Engine) forgetDurable(ctx context.Context, c *checkpoint) error {
	if e.origins.orphan(c.id) {
		return nil
	}
	return e.keeper.forget(ctx, c)
}

// disown says that a copy is gone.
func (e *Engine) disown(ctx context.Context, id string) {
	if id == "" || !e.origins.release(id) || !e.keeper.on {
		return
	}
	e.keeper.drop(func(x *keeping) bool { return x.checkpoint.id == id })
	w, err := e.keeper.worker(ctx)
	if err == nil {
		err = w.Remove(ctx, id)
	}
	if err != nil && !fault.Is(err, fault.NotFound) { // the next supervisor removes it
		e.log.Error("remove a durable checkpoint that nobody needs any more", "checkpoint", id, "error", err)
	}
}
