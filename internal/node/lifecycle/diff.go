package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Diff lists the files that differ between two checkpoints of one sandbox, or
// between one and the live state, which a sandbox's id or name means. Names
// of checkpoints are looked up in the sandbox that is given, which may be
// empty.
func (s *Sandboxes) Diff(ctx context.Context, from, to, sandbox string) ([]control.Change, error) {
	a, err := s.diffSide(ctx, from, sandbox)
	if err != nil {
		return nil, fmt.Errorf("diff: %w", err)
	}
	z, err := s.diffSide(ctx, to, sandbox)
	if err != nil {
		return nil, fmt.Errorf("diff: %w", err)
	}
	switch {
	case a.Sandbox != z.Sandbox:
		return nil, fault.New(fault.Invalid, "diff: %q and %q are not of one sandbox", from, to)
	case a.ID == "" && z.ID == "":
		return nil, fault.New(fault.Invalid, "diff: both sides are the live state of sandbox %q", from)
	}
	swap := a.ID == "" // the supervisor has the live state on the right
	if swap {
		a, z = z, a
	}
	r, err := with(ctx, s, a.Sandbox, "diff", func(c *control.Client, _ store.Sandbox) (control.DiffReply, error) {
		return c.Diff(ctx, control.DiffRequest{Sandbox: a.Sandbox, From: a.ID, To: z.ID})
	})
	if err != nil {
		return nil, err
	}
	if swap {
		for i, c := range r.Changes {
			switch c.Kind {
			case "A":
				r.Changes[i].Kind = "D"
			case "D":
				r.Changes[i].Kind = "A"
			}
		}
	}
	return r.Changes, nil
}

// diffSide finds a checkpoint, or a sandbox: then the id is empty.
func (s *Sandboxes) diffSide(ctx context.Context, ref, sandbox string) (store.Checkpoint, error) {
	b, err := s.find(ctx, ref)
	if err == nil {
		return store.Checkpoint{Sandbox: b.record().ID}, nil
	}
	if !fault.Is(err, fault.NotFound) {
		return store.Checkpoint{}, err
	}
	return s.resolve(ctx, sandbox, ref)
}
