package engine

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// Recover makes sandboxes of an earlier supervisor known, without bodies: a
// rollback gives them one.
func (e *Engine) Recover(ctx context.Context, r control.RecoverRequest) (control.RecoverReply, error) {
	w, err := e.keeper.worker(ctx)
	if err != nil {
		return control.RecoverReply{}, err
	}
	l, err := w.List(ctx)
	if err != nil {
		return control.RecoverReply{}, err
	}
	there := map[string]int64{}
	for _, i := range l.Records {
		there[i.ID] = i.NewBytes
	}
	var out control.RecoverReply
	wanted := map[string]bool{}
	for _, sb := range r.Sandboxes {
		t, err := e.recover(sb, there)
		if err != nil {
			return out, err
		}
		for _, c := range t.Checkpoints {
			wanted[c.ID] = true
		}
		out.Trees = append(out.Trees, t)
	}
	for _, i := range l.Records {
		// One that is being taken is in its tree before it is written.
		if wanted[i.ID] || e.inTree(i.Sandbox, i.ID) || e.origins.orphan(i.ID) {
			continue // or copies of it are there
		}
		// Its removal was asked for while nobody could carry it out.
		if err := w.Remove(ctx, i.ID); err != nil && !fault.Is(err, fault.NotFound) {
			e.log.Error("remove a durable checkpoint that nobody knows", "checkpoint", i.ID, "error", err)
		}
	}
	return out, nil
}

// inTree reports whether a sandbox that is known has a checkpoint.
func (e *Engine) inTree(sandbox, checkpoint string) bool {
	b, err := e.box(sandbox)
	if err != nil {
		return false
	}
	_, release, err := b.tree.Use(checkpoint)
	if err != nil {
		return false
	}
	release()
	return true
}

// recover does so for one sandbox. there are the records, by id, with their
// sizes.
func (e *Engine) recover(r control.RecoverSandbox, there map[string]int64) (control.TreeReply, error) {
	b, err := e.newBox(r.Sandbox, r.Hostname, r.Resources, r.Setuid)
	if fault.Is(err, fault.Exists) {
		return e.Tree(context.Background(), control.SandboxRequest{Sandbox: r.Sandbox})
	}
	if err != nil {
		return control.TreeReply{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.generation = r.Generation
	parents := map[string]string{}
	for _, k := range r.Checkpoints {
		parents[k.ID] = k.Parent
	}
	// The nearest ancestor that is there takes the place of one that is not.
	nearest := func(id string) string {
		return control.Nearest(id, parents, func(id string) bool { _, ok := there[id]; return ok })
	}
	for _, k := range r.Checkpoints {
		size, ok := there[k.ID]
		if !ok {
			continue
		}
		k.Memory, k.Durable, k.DurableReason, k.DurableKind = control.MemoryNone, control.DurableYes, "", ""
		if k.DurableBytes == 0 {
			k.DurableBytes = size
		}
		if err := b.tree.Restore(nearest(k.Parent), k.ID, k.Name, onDisk(e.family, b, k)); err != nil {
			return control.TreeReply{}, errors.Join(err, e.dropBox(b))
		}
	}
	b.tree.MoveTo(nearest(r.At))
	if _, ok := there[r.Origin]; ok {
		e.origins.hold(r.Origin)
		b.origin = r.Origin
	}
	return e.Tree(context.Background(), control.SandboxRequest{Sandbox: b.id})
}

// Verify reads durable checkpoints and compares every checksum.
func (e *Engine) Verify(ctx context.Context, r control.VerifyRequest) (control.VerifyReply, error) {
	w, err := e.keeper.worker(ctx)
	if err != nil {
		return control.VerifyReply{}, err
	}
	problems, err := w.Verify(ctx, r.Checkpoints...)
	out := control.VerifyReply{Problems: []control.Problem{}}
	for _, p := range problems {
		out.Problems = append(out.Problems, control.Problem{Checkpoint: p.Record, What: p.What})
	}
	return out, err
}

// Export writes durable checkpoints to a file.
func (e *Engine) Export(ctx context.Context, r control.ExportRequest, files []*os.File) error {
	if len(files) != 1 {
		return fault.New(fault.Invalid, "an export goes to one descriptor, not %d", len(files))
	}
	w, err := e.keeper.worker(ctx)
	if err != nil {
		return err
	}
	return w.Export(ctx, files[0], worker.ExportRequest{IDs: r.Checkpoints, Parents: r.Parents})
}

// UseWorker makes a worker the one that makes checkpoints durable. Its
// connection belongs to the engine from now on.
func (e *Engine) UseWorker(ctx context.Context, socket *os.File) error {
	w, err := worker.NewClient(socket)
	if err != nil {
		return err
	}
	if err := w.Attach(ctx, e.family.window.gate); err != nil {
		_ = w.Close()
		return err
	}
	e.keeper.use(w)
	return nil
}

// Import makes a sandbox, without a body, from an exported file.
func (e *Engine) Import(ctx context.Context, r control.ImportRequest, files []*os.File) (control.TreeReply, error) {
	if len(files) != 1 {
		return control.TreeReply{}, fault.New(fault.Invalid, "an import comes from one descriptor, not %d", len(files))
	}
	w, err := e.keeper.worker(ctx)
	if err != nil {
		return control.TreeReply{}, err
	}
	records, err := w.Import(ctx, files[0], worker.ImportRequest{Salt: r.Sandbox})
	if err != nil {
		return control.TreeReply{}, err
	}
	sb := control.RecoverSandbox{CreateRequest: r.CreateRequest}
	there := map[string]int64{}
	var youngest time.Time
	for _, i := range records {
		there[i.ID] = i.NewBytes
		sb.Checkpoints = append(sb.Checkpoints, control.Checkpoint{
			ID: i.ID, Name: i.Name, Sandbox: r.Sandbox, Parent: i.Parent, Created: i.Created, Processes: i.Processes,
			DirtyBytes: i.MemoryBytes, FileBytes: i.FileBytes,
		})
		if !i.Created.Before(youngest) {
			sb.At, youngest = i.ID, i.Created
		}
	}
	t, err := e.recover(sb, there)
	if err != nil {
		for _, i := range records {
			err = errors.Join(err, w.Remove(context.WithoutCancel(ctx), i.ID))
		}
		return control.TreeReply{}, err
	}
	return t, nil
}
