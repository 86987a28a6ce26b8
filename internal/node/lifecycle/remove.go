package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
)

// Remove ends a sandbox and deletes all of it. Without force it refuses, with
// Conflict, while sessions run. It waits for a checkpoint or rollback that is
// under way.
func (s *Sandboxes) Remove(ctx context.Context, ref string, force bool) (string, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("remove: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recMu.Lock()
	n, gone, rec := len(b.running), b.gone, b.rec
	b.recMu.Unlock()
	if gone {
		return "", fault.New(fault.NotFound, "remove: sandbox %q was removed", ref)
	}
	if n > 0 && !force && (rec.State == store.Running || asleep(rec.State)) {
		return "", fault.New(fault.Conflict, "remove: %d sessions run in sandbox %q", n, display(rec)).
			WithHint("sandtree rm -f %s ends them", display(rec))
	}
	if rec.State == store.Hibernated {
		// What it has on disk is deleted by its supervisor. If none can be had now,
		// the next one does it.
		if _, err := s.reach(ctx, b); err != nil {
			s.log.Warn("what a removed sandbox has on disk is left to the next supervisor", "sandbox", rec.ID, "error", err)
		}
	}
	// What was begun is finished: half a sandbox is of no use to anybody.
	if err := s.remove(context.WithoutCancel(ctx), b); err != nil {
		return "", fmt.Errorf("remove sandbox %q: %w", display(rec), err)
	}
	return rec.ID, nil
}

// remove ends a sandbox, whatever there is of it. b.mu is held.
func (s *Sandboxes) remove(ctx context.Context, b *sandbox) error {
	b.recMu.Lock()
	fam, rec := b.fam, b.rec
	b.recMu.Unlock()
	if rec.State != store.Removing {
		if _, err := s.update(ctx, b, func(r *store.Sandbox) { r.State = store.Removing }); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	if fam != nil {
		err := fam.client.Remove(ctx, rec.ID)
		if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable) {
			return err
		}
	}
	b.recMu.Lock()
	running := b.running
	b.running = map[string]*session.Session{}
	b.recMu.Unlock()
	for _, se := range running {
		se.Abandon(ctx, se.Record().Generation, 128+9, session.SandboxEnded)
		s.sessions.release(se)
	}
	if err := s.store.RemoveSandbox(ctx, rec.ID); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	s.mu.Lock()
	delete(s.live, rec.ID)
	s.mu.Unlock()
	b.recMu.Lock()
	b.gone = true
	b.broadcast()
	b.recMu.Unlock()
	if err := s.sessions.forget(rec.ID); err != nil {
		s.log.Error("logs of a removed sandbox are left behind", "sandbox", rec.ID, "error", err)
	}
	return nil
}
