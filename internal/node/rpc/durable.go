package rpc

import (
	"context"
	"errors"
	"io"
	"os"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/fault"
)

func (h *checkpoints) Wait(ctx context.Context, req *connect.Request[sandtreev1.WaitCheckpointRequest]) (*connect.Response[sandtreev1.WaitCheckpointResponse], error) {
	c, err := h.s.WaitCheckpoint(ctx, req.Msg.GetSandbox(), req.Msg.GetCheckpoint(), req.Msg.GetDurable())
	return reply(&sandtreev1.WaitCheckpointResponse{Checkpoint: toCheckpoint(c)}), err
}

func (h *checkpoints) Verify(ctx context.Context, req *connect.Request[sandtreev1.VerifyCheckpointRequest]) (*connect.Response[sandtreev1.VerifyCheckpointResponse], error) {
	v, err := h.s.Verify(ctx, req.Msg.GetSandbox(), req.Msg.GetCheckpoint())
	if err != nil {
		return nil, err
	}
	m := &sandtreev1.VerifyCheckpointResponse{Checkpoints: v.Checkpoints}
	for _, p := range v.Problems {
		m.Problems = append(m.Problems, &sandtreev1.VerifyCheckpointResponse_Problem{Checkpoint: p.Checkpoint, What: p.What})
	}
	return reply(m), nil
}

// exportChunk is how much of an export is sent at once.
const exportChunk = 64 << 10

// Export passes on what the worker writes into a pipe.
func (h *checkpoints) Export(ctx context.Context, req *connect.Request[sandtreev1.ExportRequest], stream *connect.ServerStream[sandtreev1.ExportResponse]) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fault.New(fault.Internal, "export: %w", err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		defer w.Close()
		done <- h.s.Export(ctx, req.Msg.GetSource(), w)
	}()
	buf := make([]byte, exportChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := stream.Send(&sandtreev1.ExportResponse{Data: buf[:n]}); err != nil {
				cancel(err)
				_ = r.Close() // a writer that waits ends
				return errors.Join(err, <-done)
			}
		}
		if errors.Is(err, io.EOF) {
			return <-done
		}
		if err != nil {
			return fault.New(fault.Internal, "export: %w", err)
		}
	}
}

// Import passes on what the client sends to the worker.
func (h *checkpoints) Import(ctx context.Context, stream *connect.ClientStream[sandtreev1.ImportRequest]) (*connect.Response[sandtreev1.ImportResponse], error) {
	if !stream.Receive() {
		return nil, errors.Join(stream.Err(), errNoOpen("import"))
	}
	open := stream.Msg().GetOpen()
	if open == nil {
		return nil, errNoOpen("import")
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fault.New(fault.Internal, "import: %w", err)
	}
	defer w.Close()
	sent := make(chan error, 1)
	go func() {
		defer w.Close() // the end of the file, or what is too short
		for stream.Receive() {
			if _, err := w.Write(stream.Msg().GetData()); err != nil {
				sent <- err
				return
			}
		}
		sent <- stream.Err()
	}()
	t, err := h.s.Import(ctx, open.GetTemplate(), open.GetName(), r)
	r.Close()
	if e := <-sent; err == nil && e != nil {
		err = fault.New(fault.Canceled, "import: the client went away: %w", e)
	}
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, h.s, t.Sandbox)
	return reply(&sandtreev1.ImportResponse{Sandbox: d, Tree: toTree(t)}), err
}

func (h *sandboxes) Pause(ctx context.Context, req *connect.Request[sandtreev1.PauseRequest]) (*connect.Response[sandtreev1.PauseResponse], error) {
	r, err := h.s.Pause(ctx, req.Msg.GetSandbox(), req.Msg.GetHibernate())
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, h.s, r)
	return reply(&sandtreev1.PauseResponse{Sandbox: d}), err
}

func (h *sandboxes) Resume(ctx context.Context, req *connect.Request[sandtreev1.ResumeRequest]) (*connect.Response[sandtreev1.ResumeResponse], error) {
	r, err := h.s.Resume(ctx, req.Msg.GetSandbox())
	if err != nil {
		return nil, err
	}
	d, err := describe(ctx, h.s, r.Sandbox)
	return reply(&sandtreev1.ResumeResponse{Sandbox: d, ElapsedNs: r.ElapsedNS}), err
}
