package engine

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Rollback makes the sandbox's next incarnation from one of its checkpoints.
// Until the new one stands complete, the old one goes on.
func (e *Engine) Rollback(_ context.Context, r control.CheckpointRef) (control.Rebirth, []*os.File, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return control.Rebirth{}, nil, fault.New(fault.NotFound, "no sandbox %q", r.Sandbox)
	}
	n, release, err := b.tree.Use(r.Checkpoint)
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	defer release()
	begin, steps := time.Now(), newStages()
	next := e.standbys.take(b, n.ID)
	if next == nil {
		next, err = e.restore(b, n.Data, steps, atOnce)
	}
	if err == nil {
		if err = next.release(); err != nil {
			next.abandon()
			err = errors.Join(err, e.family.store.Remove(next.body.upper))
		}
	}
	if err != nil {
		return control.Rebirth{}, nil, fault.New(fault.KindOf(err), "roll sandbox %s back to %s: %w", b.id, r.Checkpoint, err)
	}
	steps.done("release")
	old := b.body
	b.body = next.body
	b.generation++
	b.tree.MoveTo(n.ID)
	files, err := e.install(b, next)
	elapsed := time.Since(begin)
	e.watch(b, next.body)
	if old != nil {
		e.retire(b, old)
	}
	e.standbys.want(b, n.ID)
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	return control.Rebirth{Sandbox: b.describe(), ElapsedNS: elapsed.Nanoseconds(), StageNS: steps.ns}, files, nil
}

// Fork makes sandboxes from a checkpoint. Either all are made or none.
func (e *Engine) Fork(ctx context.Context, r control.ForkRequest) (control.ForkReply, error) {
	from, err := e.box(r.From.Sandbox)
	if err != nil {
		return control.ForkReply{}, err
	}
	if len(r.Hostnames) != len(r.Sandboxes) || len(r.Sandboxes) == 0 {
		return control.ForkReply{}, fault.New(fault.Invalid, "%d sandboxes with %d hostnames", len(r.Sandboxes), len(r.Hostnames))
	}
	n, release, err := from.tree.Use(r.From.Checkpoint)
	if err != nil {
		return control.ForkReply{}, err
	}
	defer release()
	var out control.ForkReply
	for i, id := range r.Sandboxes {
		begin := time.Now()
		b, err := e.forkOne(n.Data, id, r.Hostnames[i])
		if err != nil {
			err = fault.New(fault.KindOf(err), "fork checkpoint %s: %w", r.From.Checkpoint, err)
			for _, made := range out.Sandboxes {
				err = errors.Join(err, e.Remove(ctx, control.SandboxRequest{Sandbox: made.ID}))
			}
			return control.ForkReply{}, err
		}
		out.Sandboxes = append(out.Sandboxes, b)
		out.ElapsedNS = append(out.ElapsedNS, time.Since(begin).Nanoseconds())
	}
	return out, nil
}

func (e *Engine) forkOne(c *checkpoint, id, hostname string) (control.Sandbox, error) {
	if hostname == "" {
		hostname = c.hostname
	}
	b, err := e.newBox(id, hostname, c.resources, c.setuid)
	if err != nil {
		return control.Sandbox{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next, err := e.restore(b, c, newStages(), atOnce)
	if err == nil {
		if err = next.release(); err != nil {
			next.abandon()
			err = errors.Join(err, e.family.store.Remove(next.body.upper))
		}
	}
	if err != nil {
		return control.Sandbox{}, errors.Join(err, e.dropBox(b))
	}
	b.body = next.body
	files, err := e.install(b, next)
	for _, f := range files { // the node fetches its own
		_ = f.Close()
	}
	e.watch(b, next.body)
	return b.describe(), err
}
