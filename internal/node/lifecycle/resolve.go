package lifecycle

import (
	"context"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
)

// resolve finds a checkpoint: by id; by name in a sandbox; or, without one, as
// "SANDBOX/CHECKPOINT" or by a name that only one sandbox has.
func (s *Sandboxes) resolve(ctx context.Context, sandbox, ref string) (store.Checkpoint, error) {
	if ref == "" {
		return store.Checkpoint{}, fault.New(fault.Invalid, "no checkpoint is named")
	}
	if before, after, ok := strings.Cut(ref, "/"); ok && sandbox == "" {
		sandbox, ref = before, after
	}
	c, err := s.store.Checkpoint(ctx, ref)
	byID := err == nil
	if err != nil && !fault.Is(err, fault.NotFound) {
		return store.Checkpoint{}, err
	}
	if sandbox == "" && byID {
		return c, nil
	}
	own := ""
	if sandbox != "" {
		b, err := s.find(ctx, sandbox)
		if err != nil {
			return store.Checkpoint{}, err
		}
		own = b.record().ID
		if byID && c.Sandbox == own {
			return c, nil
		}
	}
	named, err := s.store.CheckpointsNamed(ctx, own, ref)
	switch {
	case err != nil:
		return store.Checkpoint{}, err
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return store.Checkpoint{}, fault.New(fault.Invalid, "checkpoint %q: %d sandboxes have one of this name", ref, len(named)).
			WithHint("say which: SANDBOX/%s", ref)
	}
	if own != "" {
		others, err := s.store.CheckpointsNamed(ctx, "", ref)
		if err != nil {
			return store.Checkpoint{}, err
		}
		if byID {
			others = append(others, c)
		}
		if len(others) > 0 {
			return store.Checkpoint{}, fault.New(fault.Invalid, "checkpoint %q is of sandbox %q, not of %q", ref, s.call(ctx, others[0].Sandbox), sandbox).
				WithHint("sandtree tree %s shows the checkpoints of this one; sandtree fork %s makes a new sandbox from that one", sandbox, others[0].ID)
		}
	}
	return store.Checkpoint{}, fault.New(fault.NotFound, "checkpoint %q does not exist", ref).WithHint("sandtree tree shows the checkpoints")
}

// call returns how to call a sandbox in messages.
func (s *Sandboxes) call(ctx context.Context, sandbox string) string {
	rec, err := s.store.Sandbox(ctx, sandbox)
	if err != nil {
		return sandbox
	}
	return display(rec)
}
