package lifecycle

import (
	"context"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// reach returns the supervisor of a sandbox that may stand still, and starts it
// if need be. b.mu is held.
func (s *Sandboxes) reach(ctx context.Context, b *sandbox) (*control.Client, error) {
	b.recMu.Lock()
	fam, sleeps, template := b.fam, asleep(b.rec.State), b.rec.Template
	b.recMu.Unlock()
	if fam == nil && sleeps {
		t, err := s.store.Template(ctx, template)
		if err != nil {
			return nil, err
		}
		// A family that starts is told of all that are to come back.
		if fam, err = s.families.ensure(ctx, t); err != nil {
			return nil, err
		}
		b.setFamily(fam)
	}
	return b.tree()
}

// familyStarted tells a new supervisor what its predecessors had, and learns what
// of it is durable. It is called before anybody else knows the family.
func (s *Sandboxes) familyStarted(ctx context.Context, f *family) error {
	recs, err := s.store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	var req control.RecoverRequest
	setuid := map[string]bool{}
	for _, rec := range recs {
		if rec.Template != f.id || rec.State == store.Creating || rec.State == store.Removing {
			continue
		}
		if _, known := setuid[rec.Template]; !known {
			t, err := s.store.Template(ctx, rec.Template)
			if err != nil {
				return err
			}
			setuid[rec.Template] = t.Setuid
		}
		sb := control.RecoverSandbox{
			CreateRequest: control.CreateRequest{Sandbox: rec.ID, Hostname: rec.Hostname, Resources: rec.Resources, Setuid: setuid[rec.Template]},
			Generation:    rec.Generation, At: rec.At, Origin: rec.ForkedFrom,
		}
		checkpoints, err := s.store.Checkpoints(ctx, rec.ID)
		if err != nil {
			return err
		}
		for _, c := range checkpoints {
			if c.Info.ID == "" { // it was being taken
				continue
			}
			c.Info.Name = c.Name
			sb.Checkpoints = append(sb.Checkpoints, c.Info)
		}
		if len(sb.Checkpoints) > 0 || sb.Origin != "" {
			req.Sandboxes = append(req.Sandboxes, sb)
		}
	}
	r, err := f.client.Recover(ctx, req)
	if fault.Is(err, fault.Unsupported) { // nothing is durable there
		return nil
	}
	if err != nil {
		return err
	}
	for _, t := range r.Trees {
		if err := s.recovered(ctx, f, t); err != nil {
			return err
		}
	}
	return nil
}

// recovered notes what a new supervisor has of a sandbox.
func (s *Sandboxes) recovered(ctx context.Context, f *family, t control.TreeReply) error {
	if err := s.agree(ctx, t); err != nil {
		return err
	}
	s.mu.Lock()
	b := s.live[t.Sandbox]
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	if b.record().Golden {
		s.goldenRecovered(b, f, t)
		return nil
	}
	b.recMu.Lock()
	dead := b.fam != nil && b.fam != f // its end is still to be reported
	sleeps := asleep(b.rec.State)
	if !dead {
		b.fam = f
	}
	b.recMu.Unlock()
	if !sleeps && !dead {
		return nil
	}
	_, err := s.update(ctx, b, func(r *store.Sandbox) {
		r.At = t.At
		if sleeps && t.At == "" && t.Origin == "" {
			r.State, r.LostReason, r.Reason = store.Lost, "nothing of it was durable", ""
		}
	})
	return err
}
