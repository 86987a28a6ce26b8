package engine

import (
	"context"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Halt ends a sandbox's body and keeps its checkpoints, which can be forked and
// rolled back to. Where it has no body nothing happens.
func (e *Engine) Halt(_ context.Context, r control.SandboxRequest) error {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return fault.New(fault.NotFound, "no sandbox %q", r.Sandbox)
	}
	o := b.body
	if o == nil {
		return nil
	}
	b.body = nil
	e.endSessions(b, o, "sandbox ended")
	e.retire(b, o)
	return nil
}
