package lifecycle

import (
	"context"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// current asks the supervisor that a sandbox has at the moment, for its sessions.
// It wakes a sandbox that stands still, where that makes sense.
type current struct {
	s *Sandboxes
	b *sandbox
}

func (c current) client(ctx context.Context) (*control.Client, error) {
	if err := c.s.wake(ctx, c.b); err != nil {
		return nil, err
	}
	return c.b.usable()
}

// Wake implements [session.Supervisor].
func (c current) Wake(ctx context.Context) error { return c.s.wake(ctx, c.b) }

// Signal implements [session.Supervisor].
func (c current) Signal(ctx context.Context, req control.SignalRequest) error {
	k, err := c.client(ctx)
	if err != nil {
		return err
	}
	return k.Signal(ctx, req)
}

// Resize implements [session.Supervisor].
func (c current) Resize(ctx context.Context, req control.ResizeRequest) error {
	k, err := c.client(ctx)
	if err != nil {
		return err
	}
	return k.Resize(ctx, req)
}

// CloseStdin implements [session.Supervisor].
func (c current) CloseStdin(ctx context.Context, req control.SessionRequest) error {
	k, err := c.client(ctx)
	if err != nil {
		return err
	}
	return k.CloseStdin(ctx, req)
}

// Forget implements [session.Supervisor].
func (c current) Forget(ctx context.Context, req control.SessionRequest) error {
	k, err := c.b.tree()
	if err != nil {
		return err
	}
	return k.Forget(ctx, req)
}
