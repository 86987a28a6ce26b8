package supervisor

import (
	"context"
	"log/slog"
	"os"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Engine carries out the verbs, which package control describes with their
// descriptors. Methods are called concurrently, also for one sandbox. Their
// context ends when the client gives up or is gone; an engine stops there
// only where it can leave everything whole. Files it returns are the
// supervisor's, which closes them.
type Engine interface {
	Create(context.Context, control.CreateRequest) (control.Sandbox, error)
	Remove(context.Context, control.SandboxRequest) error
	Halt(context.Context, control.SandboxRequest) error
	List(context.Context) (control.ListReply, error)
	Exec(context.Context, control.ExecRequest) (control.Session, []*os.File, error)
	Signal(context.Context, control.SignalRequest) error
	Resize(context.Context, control.ResizeRequest) error
	CloseStdin(context.Context, control.SessionRequest) error
	Adopt(context.Context, control.SessionRequest) (control.Session, []*os.File, error)
	Forget(context.Context, control.SessionRequest) error
	Checkpoint(context.Context, control.CheckpointRequest) (control.Checkpoint, error)
	CheckpointRemove(context.Context, control.CheckpointRef) error
	Tree(context.Context, control.SandboxRequest) (control.TreeReply, error)
	Rollback(context.Context, control.CheckpointRef) (control.Rebirth, []*os.File, error)
	Standby(context.Context, control.StandbyRequest) error
	Fork(context.Context, control.ForkRequest) (control.ForkReply, []*os.File, error)
	Kept(context.Context, control.CheckpointRef) (control.Checkpoint, error)
	Finished(context.Context, control.CheckpointRef) (control.Checkpoint, error)
	Suspend(context.Context, control.SuspendRequest) (control.Checkpoint, error)
	Recover(context.Context, control.RecoverRequest) (control.RecoverReply, error)
	Verify(context.Context, control.VerifyRequest) (control.VerifyReply, error)
	// Export and Import get the files of their call.
	Export(context.Context, control.ExportRequest, []*os.File) error
	Import(context.Context, control.ImportRequest, []*os.File) (control.TreeReply, error)
	Diff(context.Context, control.DiffRequest) (control.DiffReply, error)
	Stats(context.Context, control.SandboxRequest) (control.Stats, error)
	File(context.Context, control.FileRequest) (control.FileReply, []*os.File, error)

	// UseWorker takes the socket of the family's worker.
	UseWorker(context.Context, *os.File) error

	// Close ends all incarnations. No other method runs or follows.
	Close(context.Context) error
}

// NewEngine makes the engine of a family. It may report events from now on,
// from any goroutine, also before it returns; that never waits.
type NewEngine func(cfg control.Config, events control.Events, log *slog.Logger) (Engine, error)
