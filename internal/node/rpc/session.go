package rpc

import (
	"context"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

type sessions struct{ s *lifecycle.Sandboxes }

func toSession(s lifecycle.SessionState) *sandtreev1.Session {
	return &sandtreev1.Session{
		Id: s.ID, Sandbox: s.Sandbox, Argv: s.Argv, Tty: s.TTY, Pid: int64(s.PID), Started: timestamp(s.Started),
		EndedAt: timestamp(s.EndedAt), Ended: s.Ended, ExitCode: int32(s.ExitCode), Reason: s.Reason, //nolint:gosec // exit codes are small
		Generation: s.Generation, StdoutBytes: s.Stdout, StderrBytes: s.Stderr, Attached: uint32(s.Attached), //nolint:gosec // a count
	}
}

func toWindow(w *sandtreev1.Window) control.Window {
	return control.Window{Rows: uint16(min(w.GetRows(), 1<<16-1)), Cols: uint16(min(w.GetCols(), 1<<16-1))} //nolint:gosec // bounded
}

func execOptions(m *sandtreev1.ExecRequest) lifecycle.ExecOptions {
	return lifecycle.ExecOptions{
		Argv: m.GetArgv(), Env: m.GetEnv(), Dir: m.GetDir(), User: m.GetUser(), TTY: m.GetTty(),
		Window: toWindow(m.GetWindow()), StdinClosed: m.GetStdinClosed(), Timeout: m.GetTimeout().AsDuration(),
	}
}

func (h *sessions) Exec(ctx context.Context, req *connect.Request[sandtreev1.ExecRequest]) (*connect.Response[sandtreev1.ExecResponse], error) {
	se, release, err := h.s.Exec(ctx, req.Msg.GetSandbox(), execOptions(req.Msg))
	if err != nil {
		return nil, err
	}
	defer release()
	return reply(&sandtreev1.ExecResponse{Session: toSession(lifecycle.State(se))}), nil
}

func (h *sessions) List(ctx context.Context, req *connect.Request[sandtreev1.ListSessionsRequest]) (*connect.Response[sandtreev1.ListSessionsResponse], error) {
	all, err := h.s.Sessions(ctx, req.Msg.GetSandbox())
	if err != nil {
		return nil, err
	}
	m := &sandtreev1.ListSessionsResponse{}
	for _, s := range all {
		m.Sessions = append(m.Sessions, toSession(s))
	}
	return reply(m), nil
}

func (h *sessions) Kill(ctx context.Context, req *connect.Request[sandtreev1.KillRequest]) (*connect.Response[sandtreev1.KillResponse], error) {
	err := h.s.Kill(ctx, req.Msg.GetSession(), req.Msg.GetSandbox(), int(req.Msg.GetSignal()))
	return reply(&sandtreev1.KillResponse{Id: req.Msg.GetSession()}), err
}
