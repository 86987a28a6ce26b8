package control

import (
	"context"
	"encoding/json"
	"os"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
)

// Client calls a supervisor's verbs. Errors are the supervisor's, or of kind
// [fault.Unavailable] when it is gone. Files it returns are the caller's.
type Client struct{ *wire.Conn }

// Events are called when the supervisor reports something, one at a time and
// in order. A nil function drops its event.
type Events struct {
	// SessionEnded is repeated to each new client until the session was
	// forgotten ([Client.Forget]) or its sandbox removed.
	SessionEnded     func(Session)
	SandboxEnded     func(SandboxEnded)
	CheckpointFailed func(CheckpointFailed)
	CheckpointKept   func(Checkpoint)
}

// NewClient makes a client of a connected socket, which belongs to it from now
// on, whatever it returns.
func NewClient(socket *os.File, events Events) (*Client, error) {
	conn, err := wire.Open(socket)
	if err != nil {
		return nil, err
	}
	return &Client{wire.NewConn(conn, events.handle)}, nil
}

func (e Events) handle(ev wire.Event) {
	switch ev.Name {
	case EventSessionEnded:
		pass(ev, e.SessionEnded)
	case EventSandboxEnded:
		pass(ev, e.SandboxEnded)
	case EventCheckpointFailed:
		pass(ev, e.CheckpointFailed)
	case EventCheckpointKept:
		pass(ev, e.CheckpointKept)
	}
}

// pass calls f with the event. One of another shape comes from a supervisor of
// another version, and is dropped like one of another name.
func pass[T any](ev wire.Event, f func(T)) {
	var v T
	if f != nil && json.Unmarshal(ev.Data, &v) == nil {
		f(v)
	}
}

// call is for verbs that return no descriptors.
func call[Resp, Req any](ctx context.Context, c *Client, verb string, req Req) (Resp, error) {
	resp, files, err := wire.Call[Resp](ctx, c.Conn, verb, req)
	closeAll(files)
	return resp, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Create boots a sandbox.
func (c *Client) Create(ctx context.Context, req CreateRequest) (Sandbox, error) {
	return call[Sandbox](ctx, c, VerbCreate, req)
}

// Remove ends a sandbox and frees what it has.
func (c *Client) Remove(ctx context.Context, sandbox string) error {
	_, err := call[wire.None](ctx, c, VerbRemove, SandboxRequest{sandbox})
	return err
}

// Halt ends a sandbox's processes and keeps its checkpoints.
func (c *Client) Halt(ctx context.Context, sandbox string) error {
	_, err := call[wire.None](ctx, c, VerbHalt, SandboxRequest{sandbox})
	return err
}

// List lists the family's sandboxes with their sessions.
func (c *Client) List(ctx context.Context) (ListReply, error) {
	return call[ListReply](ctx, c, VerbList, wire.None{})
}

// Exec starts a session. See [ExecRequest] for the files.
func (c *Client) Exec(ctx context.Context, req ExecRequest) (Session, []*os.File, error) {
	return wire.Call[Session](ctx, c.Conn, VerbExec, req)
}

// Signal sends a signal to a session's process group.
func (c *Client) Signal(ctx context.Context, req SignalRequest) error {
	_, err := call[wire.None](ctx, c, VerbSignal, req)
	return err
}

// Resize sets the size of a session's terminal.
func (c *Client) Resize(ctx context.Context, req ResizeRequest) error {
	_, err := call[wire.None](ctx, c, VerbResize, req)
	return err
}

// CloseStdin ends a session's input.
func (c *Client) CloseStdin(ctx context.Context, req SessionRequest) error {
	_, err := call[wire.None](ctx, c, VerbCloseStdin, req)
	return err
}

// Adopt returns a running session with duplicates of its descriptors, as
// [ExecRequest] states them; an ended one has none.
func (c *Client) Adopt(ctx context.Context, req SessionRequest) (Session, []*os.File, error) {
	return wire.Call[Session](ctx, c.Conn, VerbAdopt, req)
}

// Forget says that an ended session's status was recorded.
func (c *Client) Forget(ctx context.Context, req SessionRequest) error {
	_, err := call[wire.None](ctx, c, VerbForget, req)
	return err
}

// Checkpoint takes a checkpoint.
func (c *Client) Checkpoint(ctx context.Context, req CheckpointRequest) (Checkpoint, error) {
	return call[Checkpoint](ctx, c, VerbCheckpoint, req)
}

// CheckpointRemove removes a checkpoint.
func (c *Client) CheckpointRemove(ctx context.Context, ref CheckpointRef) error {
	_, err := call[wire.None](ctx, c, VerbCheckpointRemove, ref)
	return err
}

// Tree lists a sandbox's checkpoints.
func (c *Client) Tree(ctx context.Context, sandbox string) (TreeReply, error) {
	return call[TreeReply](ctx, c, VerbTree, SandboxRequest{sandbox})
}

// Rollback replaces a sandbox's incarnation by one of a checkpoint. See
// [Rebirth] for the files.
func (c *Client) Rollback(ctx context.Context, ref CheckpointRef) (Rebirth, []*os.File, error) {
	return wire.Call[Rebirth](ctx, c.Conn, VerbRollback, ref)
}

// Standby asks for bodies of a checkpoint that stand ready.
func (c *Client) Standby(ctx context.Context, req StandbyRequest) error {
	_, err := call[wire.None](ctx, c, VerbStandby, req)
	return err
}

// Fork makes sandboxes from a checkpoint. See [ForkReply] for the files.
func (c *Client) Fork(ctx context.Context, req ForkRequest) (ForkReply, []*os.File, error) {
	r, files, err := wire.Call[ForkReply](ctx, c.Conn, VerbFork, req)
	if err != nil {
		return ForkReply{}, nil, err
	}
	n := 0
	for _, k := range r.Files {
		n += max(k, 0)
	}
	if len(r.Files) != len(r.Sandboxes) || n != len(files) {
		closeAll(files)
		return ForkReply{}, nil, fault.New(fault.Internal, "fork: the supervisor sent %d descriptors, not %d", len(files), n)
	}
	return r, files, nil
}

// Diff compares the files of two checkpoints.
func (c *Client) Diff(ctx context.Context, req DiffRequest) (DiffReply, error) {
	return call[DiffReply](ctx, c, VerbDiff, req)
}

// Stats are a sandbox's figures.
func (c *Client) Stats(ctx context.Context, sandbox string) (Stats, error) {
	return call[Stats](ctx, c, VerbStats, SandboxRequest{sandbox})
}

// File does one file operation. For [FileOpen] and [FileCreate] it returns the
// open file.
func (c *Client) File(ctx context.Context, req FileRequest) (FileReply, *os.File, error) {
	reply, files, err := wire.Call[FileReply](ctx, c.Conn, VerbFile, req)
	if err != nil {
		return FileReply{}, nil, err
	}
	want := 0
	if req.Op == FileOpen || req.Op == FileCreate {
		want = 1
	}
	if len(files) != want {
		closeAll(files)
		return FileReply{}, nil, fault.New(fault.Internal, "file %s: the supervisor sent %d descriptors, not %d", req.Op, len(files), want)
	}
	if want == 0 {
		return reply, nil, nil
	}
	return reply, files[0], nil
}

// Kept waits until a checkpoint is durable, or cannot be. One that was not meant
// to be is made so.
func (c *Client) Kept(ctx context.Context, ref CheckpointRef) (Checkpoint, error) {
	return call[Checkpoint](ctx, c, VerbKept, ref)
}

// Finished waits until a checkpoint's memory is ready.
func (c *Client) Finished(ctx context.Context, ref CheckpointRef) (Checkpoint, error) {
	return call[Checkpoint](ctx, c, VerbFinished, ref)
}

// Suspend takes a checkpoint and ends the body.
func (c *Client) Suspend(ctx context.Context, req SuspendRequest) (Checkpoint, error) {
	return call[Checkpoint](ctx, c, VerbSuspend, req)
}

// Recover makes sandboxes known that an earlier supervisor had.
func (c *Client) Recover(ctx context.Context, req RecoverRequest) (RecoverReply, error) {
	return call[RecoverReply](ctx, c, VerbRecover, req)
}

// Verify reads durable checkpoints and compares every checksum.
func (c *Client) Verify(ctx context.Context, req VerifyRequest) (VerifyReply, error) {
	return call[VerifyReply](ctx, c, VerbVerify, req)
}

// Export writes durable checkpoints to a file, which stays the caller's.
func (c *Client) Export(ctx context.Context, req ExportRequest, to *os.File) error {
	_, files, err := wire.Call[wire.None](ctx, c.Conn, VerbExport, req, to)
	closeAll(files)
	return err
}

// Import makes a sandbox of an exported file, which stays the caller's.
func (c *Client) Import(ctx context.Context, req ImportRequest, from *os.File) (TreeReply, error) {
	r, files, err := wire.Call[TreeReply](ctx, c.Conn, VerbImport, req, from)
	closeAll(files)
	return r, err
}

// Worker hands the supervisor its worker's socket, which stays the caller's.
// For the host.
func (c *Client) Worker(ctx context.Context, socket *os.File) error {
	_, _, err := wire.Call[wire.None](ctx, c.Conn, VerbWorker, wire.None{}, socket)
	return err
}

// Ready waits until the supervisor's engine runs. For the host.
func (c *Client) Ready(ctx context.Context) error {
	_, err := call[wire.None](ctx, c, VerbReady, wire.None{})
	return err
}

// Client hands the supervisor one more client's socket, which stays the
// caller's. For the host.
func (c *Client) Client(ctx context.Context, socket *os.File) error {
	_, _, err := wire.Call[wire.None](ctx, c.Conn, VerbClient, wire.None{}, socket)
	return err
}
