package client

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

var memories = map[sandtreev1.CheckpointMemory]Memory{
	sandtreev1.CheckpointMemory_CHECKPOINT_MEMORY_PENDING: MemoryPending,
	sandtreev1.CheckpointMemory_CHECKPOINT_MEMORY_READY:   MemoryReady,
	sandtreev1.CheckpointMemory_CHECKPOINT_MEMORY_NONE:    MemoryNone,
}

var durabilities = map[sandtreev1.Durability]Durability{
	sandtreev1.Durability_DURABILITY_NO:      DurableNo,
	sandtreev1.Durability_DURABILITY_PENDING: DurablePending,
	sandtreev1.Durability_DURABILITY_YES:     DurableYes,
	sandtreev1.Durability_DURABILITY_FAILED:  DurableFailed,
}

// WaitFinished returns when a checkpoint that was taken asynchronously is
// finished. One that failed is not found.
func (c *Client) WaitFinished(ctx context.Context, checkpoint string) (*Checkpoint, error) {
	return c.waitCheckpoint(ctx, checkpoint, false)
}

// WaitDurable returns when a checkpoint, an id or "SANDBOX/NAME", is durable. One
// that was not meant to be is made so.
func (c *Client) WaitDurable(ctx context.Context, checkpoint string) (*Checkpoint, error) {
	return c.waitCheckpoint(ctx, checkpoint, true)
}

func (c *Client) waitCheckpoint(ctx context.Context, checkpoint string, durable bool) (*Checkpoint, error) {
	r, err := c.checkpoints.Wait(ctx, connect.NewRequest(&sandtreev1.WaitCheckpointRequest{Checkpoint: checkpoint, Durable: durable}))
	if err != nil {
		return nil, wrap(err)
	}
	return c.checkpoint(r.Msg.GetCheckpoint()), nil
}

// VerifyProblem is something broken in the durable form of a checkpoint.
type VerifyProblem struct {
	Checkpoint string `json:"checkpoint,omitempty"` // its id, if that is known
	What       string `json:"what"`
}

// VerifyResult is what a verification found. Nothing is broken without problems.
type VerifyResult struct {
	Checkpoints []string        `json:"checkpoints"` // the ids of those that were read
	Problems    []VerifyProblem `json:"problems"`
}

// Verify reads the durable form of a checkpoint, an id or "SANDBOX/NAME", and
// compares every checksum.
func (c *Client) Verify(ctx context.Context, checkpoint string) (VerifyResult, error) {
	return c.verify(ctx, "", checkpoint)
}

// Verify reads the durable form of all of the sandbox's checkpoints that have one.
func (s *Sandbox) Verify(ctx context.Context) (VerifyResult, error) { return s.c.verify(ctx, s.ID, "") }

func (c *Client) verify(ctx context.Context, sandbox, checkpoint string) (VerifyResult, error) {
	r, err := c.checkpoints.Verify(ctx, connect.NewRequest(&sandtreev1.VerifyCheckpointRequest{Sandbox: sandbox, Checkpoint: checkpoint}))
	if err != nil {
		return VerifyResult{}, wrap(err)
	}
	v := VerifyResult{Checkpoints: r.Msg.GetCheckpoints(), Problems: []VerifyProblem{}}
	for _, p := range r.Msg.GetProblems() {
		v.Problems = append(v.Problems, VerifyProblem{p.GetCheckpoint(), p.GetWhat()})
	}
	return v, nil
}

// Export writes durable checkpoints as one file: all of a sandbox, or the one
// that source names as in [Client.Fork].
func (c *Client) Export(ctx context.Context, source string, w io.Writer) error {
	s, err := c.checkpoints.Export(ctx, connect.NewRequest(&sandtreev1.ExportRequest{Source: source}))
	if err != nil {
		return wrap(err)
	}
	defer func() { _ = s.Close() }()
	for s.Receive() {
		if _, err := w.Write(s.Msg().GetData()); err != nil {
			return err
		}
	}
	return wrap(s.Err())
}

// Import makes a sandbox of what [Client.Export] wrote. It stands still, at the
// youngest checkpoint of the file. The template is a name or id of one with the same
// layers; empty means "debian". The name is optional.
func (c *Client) Import(ctx context.Context, r io.Reader, template, name string) (*Sandbox, error) {
	s := c.checkpoints.Import(ctx)
	err := s.Send(&sandtreev1.ImportRequest{Message: &sandtreev1.ImportRequest_Open{Open: &sandtreev1.ImportOpen{Template: template, Name: name}}})
	in, buf := newCancelReader(ctx, r), make([]byte, chunkSize)
	for err == nil {
		var n int
		n, err = in.Read(buf)
		if n > 0 {
			if e := s.Send(&sandtreev1.ImportRequest{Message: &sandtreev1.ImportRequest_Data{Data: buf[:n]}}); e != nil {
				err = e
			}
		}
	}
	failed := err != nil && !errors.Is(err, io.EOF)
	reply, e := s.CloseAndReceive()
	switch {
	case e != nil:
		return nil, wrap(e) // says more than the error of a send
	case failed:
		return nil, err
	}
	return c.sandbox(reply.Msg.GetSandbox()), nil
}

// Pause makes the sandbox stand still. What it is, is durable when Pause returns;
// a body may stay ready in memory. Whoever uses the sandbox makes it run on.
func (s *Sandbox) Pause(ctx context.Context) (*Sandbox, error) { return s.pause(ctx, false) }

// Hibernate is [Sandbox.Pause], and leaves nothing of the sandbox in memory.
func (s *Sandbox) Hibernate(ctx context.Context) (*Sandbox, error) { return s.pause(ctx, true) }

func (s *Sandbox) pause(ctx context.Context, hibernate bool) (*Sandbox, error) {
	r, err := s.c.sandboxes.Pause(ctx, connect.NewRequest(&sandtreev1.PauseRequest{Sandbox: s.ID, Hibernate: hibernate}))
	if err != nil {
		return nil, wrap(err)
	}
	return s.c.sandbox(r.Msg.GetSandbox()), nil
}

// ResumeResult is a sandbox that runs on.
type ResumeResult struct {
	SandboxInfo
	ElapsedNS int64 `json:"elapsed_ns"` // 0: it ran
}

// Resume makes a sandbox that stands still run on. It is no error if it runs.
func (s *Sandbox) Resume(ctx context.Context) (ResumeResult, error) {
	r, err := s.c.sandboxes.Resume(ctx, connect.NewRequest(&sandtreev1.ResumeRequest{Sandbox: s.ID}))
	if err != nil {
		return ResumeResult{}, wrap(err)
	}
	return ResumeResult{s.c.sandbox(r.Msg.GetSandbox()).SandboxInfo, r.Msg.GetElapsedNs()}, nil
}
