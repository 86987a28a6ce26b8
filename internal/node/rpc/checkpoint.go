package rpc

import (
	"context"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

type checkpoints struct{ s *lifecycle.Sandboxes }

func toCheckpoint(c control.Checkpoint) *sandtreev1.Checkpoint {
	return &sandtreev1.Checkpoint{
		Id: c.ID, Name: c.Name, Sandbox: c.Sandbox, Parent: c.Parent, Created: timestamp(c.Created), FrozenNs: c.FrozenNS,
		DirtyBytes: c.DirtyBytes, FileBytes: c.FileBytes, Processes: int64(c.Processes), Threads: int64(c.Threads), StageNs: c.StageNS,
		Memory: memories[c.Memory], Durable: durabilities[c.Durable], DurableReason: c.DurableReason, DurableBytes: c.DurableBytes,
	}
}

var memories = map[string]sandtreev1.CheckpointMemory{
	control.MemoryPending: sandtreev1.CheckpointMemory_CHECKPOINT_MEMORY_PENDING,
	control.MemoryReady:   sandtreev1.CheckpointMemory_CHECKPOINT_MEMORY_READY,
	control.MemoryNone:    sandtreev1.CheckpointMemory_CHECKPOINT_MEMORY_NONE,
}

var durabilities = map[string]sandtreev1.Durability{
	control.DurableNo:      sandtreev1.Durability_DURABILITY_NO,
	control.DurablePending: sandtreev1.Durability_DURABILITY_PENDING,
	control.DurableYes:     sandtreev1.Durability_DURABILITY_YES,
	control.DurableFailed:  sandtreev1.Durability_DURABILITY_FAILED,
}

var keeps = map[sandtreev1.Keep]lifecycle.Keep{
	sandtreev1.Keep_KEEP_NO:   lifecycle.KeepNot,
	sandtreev1.Keep_KEEP_WAIT: lifecycle.KeepNow,
}

func toTree(t lifecycle.Tree) *sandtreev1.Tree {
	m := &sandtreev1.Tree{Sandbox: t.Sandbox.ID, SandboxName: t.Sandbox.Name, At: t.At}
	for _, c := range t.Checkpoints {
		m.Checkpoints = append(m.Checkpoints, toCheckpoint(c))
	}
	return m
}

func (h *checkpoints) Create(ctx context.Context, req *connect.Request[sandtreev1.CreateCheckpointRequest]) (*connect.Response[sandtreev1.CreateCheckpointResponse], error) {
	c, err := h.s.Checkpoint(ctx, req.Msg.GetSandbox(), lifecycle.CheckpointOptions{
		Name: req.Msg.GetName(), Async: req.Msg.GetAsync(), Keep: keeps[req.Msg.GetKeep()], Explain: req.Msg.GetExplain(),
	})
	m := &sandtreev1.CreateCheckpointResponse{Checkpoint: toCheckpoint(c)}
	for _, i := range c.Items {
		m.Items = append(m.Items, &sandtreev1.CapturedItem{
			Process: int64(i.Process), Command: i.Command, Kind: i.Kind, What: i.What, Count: int64(i.Count), Bytes: i.Bytes,
		})
	}
	return reply(m), err
}

func (h *checkpoints) Remove(ctx context.Context, req *connect.Request[sandtreev1.RemoveCheckpointRequest]) (*connect.Response[sandtreev1.RemoveCheckpointResponse], error) {
	id, err := h.s.RemoveCheckpoint(ctx, req.Msg.GetSandbox(), req.Msg.GetCheckpoint())
	return reply(&sandtreev1.RemoveCheckpointResponse{Id: id}), err
}

func (h *checkpoints) Standby(ctx context.Context, req *connect.Request[sandtreev1.StandbyRequest]) (*connect.Response[sandtreev1.StandbyResponse], error) {
	id, err := h.s.Standby(ctx, req.Msg.GetSandbox(), req.Msg.GetCheckpoint(), int(req.Msg.GetCount()))
	return reply(&sandtreev1.StandbyResponse{Checkpoint: id}), err
}

func (h *checkpoints) Tree(ctx context.Context, req *connect.Request[sandtreev1.TreeRequest]) (*connect.Response[sandtreev1.TreeResponse], error) {
	m := &sandtreev1.TreeResponse{}
	if ref := req.Msg.GetSandbox(); ref != "" {
		t, err := h.s.Tree(ctx, ref)
		m.Trees = append(m.Trees, toTree(t))
		return reply(m), err
	}
	all, err := h.s.Trees(ctx)
	for _, t := range all {
		m.Trees = append(m.Trees, toTree(t))
	}
	return reply(m), err
}

func (h *checkpoints) Rollback(ctx context.Context, req *connect.Request[sandtreev1.RollbackRequest]) (*connect.Response[sandtreev1.RollbackResponse], error) {
	r, err := h.s.Rollback(ctx, req.Msg.GetSandbox(), req.Msg.GetCheckpoint())
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, h.s, r.Sandbox)
	return reply(&sandtreev1.RollbackResponse{Sandbox: d, Checkpoint: r.Checkpoint, ElapsedNs: r.ElapsedNS, StageNs: r.StageNS}), err
}

func (h *checkpoints) Fork(ctx context.Context, req *connect.Request[sandtreev1.ForkRequest]) (*connect.Response[sandtreev1.ForkResponse], error) {
	n := req.Msg.GetCount()
	if n == 0 {
		n = 1
	}
	f, err := h.s.Fork(ctx, req.Msg.GetSource(), lifecycle.ForkOptions{
		Count: int(n), Names: req.Msg.GetNames(), Reseed: req.Msg.GetReseed(), ReseedTimeout: req.Msg.GetReseedTimeout().AsDuration(),
	})
	if err != nil {
		return nil, err
	}
	m := &sandtreev1.ForkResponse{Checkpoint: toCheckpoint(f.Checkpoint), ElapsedNs: f.ElapsedNS}
	for _, r := range f.Sandboxes {
		d, err := describe(ctx, h.s, r)
		if err != nil {
			return nil, err
		}
		m.Sandboxes = append(m.Sandboxes, d)
	}
	for _, se := range f.Sessions {
		m.Sessions = append(m.Sessions, toSession(se))
	}
	for _, r := range f.Reseeds {
		m.Reseeds = append(m.Reseeds, &sandtreev1.Reseed{
			Sandbox: r.Sandbox, Found: r.Found, Session: r.Session, ExitCode: int32(r.ExitCode), //nolint:gosec // a byte
			Reason: r.Reason, Output: r.Output, ElapsedNs: r.Took.Nanoseconds(),
		})
	}
	return reply(m), nil
}

var changeKinds = map[string]sandtreev1.ChangeKind{
	"A": sandtreev1.ChangeKind_CHANGE_KIND_ADDED,
	"M": sandtreev1.ChangeKind_CHANGE_KIND_MODIFIED,
	"D": sandtreev1.ChangeKind_CHANGE_KIND_DELETED,
}

func (h *checkpoints) Diff(ctx context.Context, req *connect.Request[sandtreev1.DiffRequest]) (*connect.Response[sandtreev1.DiffResponse], error) {
	changes, err := h.s.Diff(ctx, req.Msg.GetFrom(), req.Msg.GetTo(), req.Msg.GetSandbox())
	if err != nil {
		return nil, err
	}
	m := &sandtreev1.DiffResponse{}
	for _, c := range changes {
		m.Changes = append(m.Changes, &sandtreev1.Change{Path: c.Path, Kind: changeKinds[c.Kind]})
	}
	return reply(m), nil
}
