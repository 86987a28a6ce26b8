package engine

import (
	"context"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Finished waits until a checkpoint's zygotes are made.
func (e *Engine) Finished(_ context.Context, r control.CheckpointRef) (control.Checkpoint, error) {
	b, n, release, err := e.use(r)
	if err != nil {
		return control.Checkpoint{}, err
	}
	defer release()
	if err := n.await(); err != nil {
		return control.Checkpoint{}, err
	}
	return e.report(b, n.id)
}

// Kept waits until a checkpoint is durable, or cannot be. One that was not meant
// to be, or has failed, is made so now.
func (e *Engine) Kept(ctx context.Context, r control.CheckpointRef) (control.Checkpoint, error) {
	b, c, release, err := e.use(r)
	if err != nil {
		return control.Checkpoint{}, err
	}
	defer release()
	if err := c.await(); err != nil {
		return control.Checkpoint{}, err
	}
	done, err := e.keep(b, c)
	if err != nil {
		return control.Checkpoint{}, err
	}
	select {
	case <-done:
		return e.report(b, c.id)
	case <-ctx.Done():
		return control.Checkpoint{}, context.Cause(ctx)
	}
}

// use finds a checkpoint, which is not freed until release is called.
func (e *Engine) use(r control.CheckpointRef) (*box, *checkpoint, func(), error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return nil, nil, nil, err
	}
	n, release, err := b.tree.Use(r.Checkpoint)
	if err != nil {
		return nil, nil, nil, err
	}
	return b, n.Data, release, nil
}
