package engine

import (
	"context"
	"os"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Diff lists the files that differ between two checkpoints, or a checkpoint
// and the live state.
func (e *Engine) Diff(ctx context.Context, r control.DiffRequest) (control.DiffReply, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.DiffReply{}, err
	}
	from, release, err := b.tree.Use(r.From)
	if err != nil {
		return control.DiffReply{}, err
	}
	defer release()
	if err := from.Data.acquire(ctx); err != nil {
		return control.DiffReply{}, err
	}
	defer from.Data.release()
	var to string
	if r.To != "" {
		n, release, err := b.tree.Use(r.To)
		if err != nil {
			return control.DiffReply{}, err
		}
		defer release()
		if err := n.Data.acquire(ctx); err != nil {
			return control.DiffReply{}, err
		}
		defer n.Data.release()
		to = n.Data.snapshot
	} else {
		b.mu.RLock()
		defer b.mu.RUnlock()
		o, err := b.live()
		if err != nil {
			return control.DiffReply{}, err
		}
		to = o.upper
	}
	changes, err := e.family.store.Diff(ctx, from.Data.snapshot, to)
	if err != nil {
		return control.DiffReply{}, err
	}
	out := control.DiffReply{Changes: []control.Change{}}
	for _, c := range changes {
		out.Changes = append(out.Changes, control.Change{Path: c.Path, Kind: string(c.Kind)})
	}
	return out, nil
}

// Stats are the sandbox's figures of now.
func (e *Engine) Stats(_ context.Context, r control.SandboxRequest) (control.Stats, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Stats{}, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := control.Stats{
		Sandbox: b.id, MemoryMaxBytes: b.resources.MemoryBytes, PIDsMax: b.resources.PIDs, DiskMaxBytes: b.resources.DiskBytes,
	}
	for _, n := range b.tree.Nodes() {
		out.Checkpoints++
		out.CheckpointBytes += n.Data.described().DirtyBytes
		out.CheckpointMemory += e.evictor.all.of(n.Data)
	}
	out.FamilyMemory, out.FamilyMemoryMax, out.MachineMemory = e.evictor.all.total(), e.evictor.limit, e.evictor.ledger.Total()
	if b.quota != 0 {
		u, err := e.family.store.QuotaUsage(b.quota)
		if err != nil {
			return out, err
		}
		out.DiskBytes = u.Bytes
	}
	if b.body == nil {
		return out, nil
	}
	s, err := b.body.inc.Cgroup().Stats()
	if err != nil {
		return out, fault.New(fault.Internal, "figures of sandbox %s: %w", b.id, err)
	}
	out.CPUNS, out.MemoryBytes, out.PIDs, out.OOMKills = s.CPU.Nanoseconds(), s.Memory, s.PIDs, int64(s.OOMKills)
	return out, nil
}

// File does one file operation inside the sandbox.
func (e *Engine) File(_ context.Context, r control.FileRequest) (control.FileReply, []*os.File, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.FileReply{}, nil, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	o, err := b.live()
	if err != nil {
		return control.FileReply{}, nil, err
	}
	reply, f, err := o.inc.File(r)
	if err != nil || f == nil {
		return reply, nil, err
	}
	return reply, []*os.File{f}, nil
}
