package supervisor

import (
	"context"
	"os"

	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

// verbs returns the mux of a client.
func (s *supervisor) verbs() *wire.Mux {
	e := s.engine
	m := wire.NewMux()
	reply(m, control.VerbCreate, e.Create)
	done(m, control.VerbRemove, func(ctx context.Context, req control.SandboxRequest) error {
		if err := e.Remove(ctx, req); err != nil {
			return err
		}
		s.clients.forgetSandbox(req.Sandbox)
		return nil
	})
	done(m, control.VerbHalt, e.Halt)
	reply(m, control.VerbList, func(ctx context.Context, _ wire.None) (control.ListReply, error) { return e.List(ctx) })
	files(m, control.VerbExec, e.Exec)
	done(m, control.VerbSignal, e.Signal)
	done(m, control.VerbResize, e.Resize)
	done(m, control.VerbCloseStdin, e.CloseStdin)
	files(m, control.VerbAdopt, e.Adopt)
	done(m, control.VerbForget, func(ctx context.Context, req control.SessionRequest) error {
		if err := e.Forget(ctx, req); err != nil {
			return err
		}
		s.clients.forgetSession(req)
		return nil
	})
	reply(m, control.VerbCheckpoint, e.Checkpoint)
	done(m, control.VerbCheckpointRemove, e.CheckpointRemove)
	reply(m, control.VerbTree, e.Tree)
	files(m, control.VerbRollback, e.Rollback)
	done(m, control.VerbStandby, e.Standby)
	files(m, control.VerbFork, e.Fork)
	reply(m, control.VerbKept, e.Kept)
	reply(m, control.VerbFinished, e.Finished)
	reply(m, control.VerbSuspend, e.Suspend)
	reply(m, control.VerbRecover, e.Recover)
	reply(m, control.VerbVerify, e.Verify)
	wire.Handle(m, control.VerbExport, func(ctx context.Context, req control.ExportRequest, files []*os.File) (wire.None, []*os.File, error) {
		return wire.None{}, nil, e.Export(ctx, req, files)
	})
	wire.Handle(m, control.VerbImport, func(ctx context.Context, req control.ImportRequest, files []*os.File) (control.TreeReply, []*os.File, error) {
		t, err := e.Import(ctx, req, files)
		return t, nil, err
	})
	reply(m, control.VerbDiff, e.Diff)
	reply(m, control.VerbStats, e.Stats)
	files(m, control.VerbFile, e.File)
	return m
}

// reply, done and files register a method by what it returns.

func reply[Req, Resp any](m *wire.Mux, verb string, f func(context.Context, Req) (Resp, error)) {
	wire.Handle(m, verb, func(ctx context.Context, req Req, _ []*os.File) (Resp, []*os.File, error) {
		resp, err := f(ctx, req)
		return resp, nil, err
	})
}

func done[Req any](m *wire.Mux, verb string, f func(context.Context, Req) error) {
	reply(m, verb, func(ctx context.Context, req Req) (wire.None, error) { return wire.None{}, f(ctx, req) })
}

func files[Req, Resp any](m *wire.Mux, verb string, f func(context.Context, Req) (Resp, []*os.File, error)) {
	wire.Handle(m, verb, func(ctx context.Context, req Req, _ []*os.File) (Resp, []*os.File, error) { return f(ctx, req) })
}
