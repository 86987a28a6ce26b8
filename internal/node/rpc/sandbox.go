package rpc

import (
	"context"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/store"
)

type sandboxes struct{ s *lifecycle.Sandboxes }

// describe makes the API's sandbox of a record.
func describe(ctx context.Context, s *lifecycle.Sandboxes, r store.Sandbox) (*sandtreev1.Sandbox, error) {
	t, err := s.Template(ctx, r.Template)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return nil, err
	}
	return toSandbox(r, t.Name), nil
}

func toSandbox(r store.Sandbox, template string) *sandtreev1.Sandbox {
	return &sandtreev1.Sandbox{
		Id: r.ID, Name: r.Name, Template: template, TemplateId: r.Template, Hostname: r.Hostname, State: toState(r.State),
		LostReason: r.LostReason, Created: timestamp(r.Created), Resources: toResources(r.Resources), Env: r.Env,
		Generation: r.Generation, At: r.At, ForkedFrom: r.ForkedFrom, StartSession: r.StartSession, StateReason: r.Reason,
	}
}

func toState(s store.State) sandtreev1.SandboxState {
	switch s {
	case store.Running:
		return sandtreev1.SandboxState_SANDBOX_STATE_RUNNING
	case store.Paused:
		return sandtreev1.SandboxState_SANDBOX_STATE_PAUSED
	case store.Hibernated:
		return sandtreev1.SandboxState_SANDBOX_STATE_HIBERNATED
	case store.Lost:
		return sandtreev1.SandboxState_SANDBOX_STATE_LOST
	}
	return sandtreev1.SandboxState_SANDBOX_STATE_UNSPECIFIED
}

func (h *sandboxes) Create(ctx context.Context, req *connect.Request[sandtreev1.CreateSandboxRequest]) (*connect.Response[sandtreev1.CreateSandboxResponse], error) {
	m := req.Msg
	r, err := h.s.Create(ctx, lifecycle.CreateOptions{
		Template: m.GetTemplate(), Name: m.GetName(), Hostname: m.GetHostname(), Env: m.GetEnv(), Resources: fromResources(m.GetResources()),
	})
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, h.s, r)
	return reply(&sandtreev1.CreateSandboxResponse{Sandbox: d}), err
}

func (h *sandboxes) List(ctx context.Context, _ *connect.Request[sandtreev1.ListSandboxesRequest]) (*connect.Response[sandtreev1.ListSandboxesResponse], error) {
	recs, err := h.s.List(ctx)
	if err != nil {
		return nil, err
	}
	ts, err := h.s.Templates(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, t := range ts {
		names[t.ID] = t.Name
	}
	m := &sandtreev1.ListSandboxesResponse{}
	for _, r := range recs {
		if toState(r.State) != sandtreev1.SandboxState_SANDBOX_STATE_UNSPECIFIED {
			m.Sandboxes = append(m.Sandboxes, toSandbox(r, names[r.Template]))
		}
	}
	return reply(m), nil
}

func (h *sandboxes) Get(ctx context.Context, req *connect.Request[sandtreev1.GetSandboxRequest]) (*connect.Response[sandtreev1.GetSandboxResponse], error) {
	r, err := h.s.Get(ctx, req.Msg.GetSandbox())
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, h.s, r)
	return reply(&sandtreev1.GetSandboxResponse{Sandbox: d}), err
}

func (h *sandboxes) Remove(ctx context.Context, req *connect.Request[sandtreev1.RemoveSandboxRequest]) (*connect.Response[sandtreev1.RemoveSandboxResponse], error) {
	id, err := h.s.Remove(ctx, req.Msg.GetSandbox(), req.Msg.GetForce())
	return reply(&sandtreev1.RemoveSandboxResponse{Id: id}), err
}

func (h *sandboxes) Wait(ctx context.Context, req *connect.Request[sandtreev1.WaitRequest]) (*connect.Response[sandtreev1.WaitResponse], error) {
	w, err := h.s.Wait(ctx, req.Msg.GetSandbox(), req.Msg.GetSession())
	if err != nil {
		return nil, err
	}
	m := &sandtreev1.WaitResponse{Id: w.Sandbox.ID, State: toState(w.Sandbox.State)}
	if w.Removed {
		m.State = sandtreev1.SandboxState_SANDBOX_STATE_UNSPECIFIED
	}
	if w.Session != nil {
		m.Session = toSession(*w.Session)
	}
	return reply(m), nil
}

func (h *sandboxes) Stats(ctx context.Context, req *connect.Request[sandtreev1.StatsRequest]) (*connect.Response[sandtreev1.StatsResponse], error) {
	s, state, err := h.s.Stats(ctx, req.Msg.GetSandbox())
	return reply(&sandtreev1.StatsResponse{
		State: toState(state),
		Id:    s.Sandbox, CpuNs: s.CPUNS, MemoryBytes: s.MemoryBytes, MemoryMaxBytes: s.MemoryMaxBytes, Pids: s.PIDs, PidsMax: s.PIDsMax,
		DiskBytes: s.DiskBytes, DiskMaxBytes: s.DiskMaxBytes, OomKills: s.OOMKills,
		Checkpoints: int64(s.Checkpoints), CheckpointBytes: s.CheckpointBytes,
		CheckpointMemoryBytes: s.CheckpointMemory, TemplateCheckpointMemoryBytes: s.FamilyMemory, TemplateCheckpointMemoryMaxBytes: s.FamilyMemoryMax,
		AllCheckpointMemoryBytes: s.MachineMemory,
	}), err
}
