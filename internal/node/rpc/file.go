package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/node/transfer"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// sendSize is how much content one message to a client holds, in bytes.
const sendSize = 128 << 10

type files struct{ s *lifecycle.Sandboxes }

// root returns the file operations of a sandbox.
func (h *files) root(sandbox string) transfer.Root {
	return func(ctx context.Context, req control.FileRequest) (control.FileReply, *os.File, error) {
		return h.s.File(ctx, sandbox, req)
	}
}

func (h *files) Stat(ctx context.Context, req *connect.Request[sandtreev1.StatRequest]) (*connect.Response[sandtreev1.StatResponse], error) {
	m := req.Msg
	e, err := h.root(m.GetSandbox()).Stat(ctx, m.GetPath(), m.GetNoFollow())
	if err != nil {
		return nil, err
	}
	return reply(&sandtreev1.StatResponse{File: &sandtreev1.FileInfo{
		Path: m.GetPath(), Mode: e.Mode, Uid: uint32(e.UID), Gid: uint32(e.GID), Size: e.Size, //nolint:gosec // ids
		Modified: timestamp(e.MTime), Target: e.Target,
	}}), nil
}

func (h *files) CopyTo(ctx context.Context, stream *connect.ClientStream[sandtreev1.CopyToRequest]) (*connect.Response[sandtreev1.CopyToResponse], error) {
	if !stream.Receive() {
		return nil, first(stream.Err(), "copy")
	}
	open := stream.Msg().GetOpen()
	if open == nil {
		return nil, errNoOpen("copy")
	}
	owner, err := transfer.ParseOwner(open.GetOwner())
	if err != nil {
		return nil, err
	}
	src := &messages{next: func() ([]byte, error) { return chunk(stream, (*sandtreev1.CopyToRequest).GetData) }}
	c, err := h.root(open.GetSandbox()).Unpack(ctx, open.GetPath(), owner, src)
	if err != nil {
		return nil, fmt.Errorf("copy to %s: %w", open.GetPath(), err)
	}
	return reply(&sandtreev1.CopyToResponse{Files: c.Files, Bytes: c.Bytes}), nil
}

func (h *files) CopyFrom(ctx context.Context, req *connect.Request[sandtreev1.CopyFromRequest], stream *connect.ServerStream[sandtreev1.CopyFromResponse]) error {
	m := req.Msg
	w := bufio.NewWriterSize(sender(func(p []byte) error { return stream.Send(&sandtreev1.CopyFromResponse{Data: p}) }), sendSize)
	if err := h.root(m.GetSandbox()).Pack(ctx, m.GetPath(), m.GetFollow(), w); err != nil {
		return fmt.Errorf("copy from %s: %w", m.GetPath(), err)
	}
	return w.Flush()
}

func (h *files) Write(ctx context.Context, stream *connect.ClientStream[sandtreev1.WriteFileRequest]) (*connect.Response[sandtreev1.WriteFileResponse], error) {
	if !stream.Receive() {
		return nil, first(stream.Err(), "write")
	}
	open := stream.Msg().GetOpen()
	if open == nil {
		return nil, errNoOpen("write")
	}
	mode := open.GetMode()
	if mode == 0 {
		mode = 0o644
	}
	src := &messages{next: func() ([]byte, error) { return chunk(stream, (*sandtreev1.WriteFileRequest).GetData) }}
	n, err := h.root(open.GetSandbox()).WriteFile(ctx, open.GetPath(), mode, int(open.GetUid()), int(open.GetGid()), src)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", open.GetPath(), err)
	}
	return reply(&sandtreev1.WriteFileResponse{Bytes: n}), nil
}

func (h *files) Read(ctx context.Context, req *connect.Request[sandtreev1.ReadFileRequest], stream *connect.ServerStream[sandtreev1.ReadFileResponse]) error {
	m := req.Msg
	w := bufio.NewWriterSize(sender(func(p []byte) error { return stream.Send(&sandtreev1.ReadFileResponse{Data: p}) }), sendSize)
	if err := h.root(m.GetSandbox()).ReadFile(ctx, m.GetPath(), w); err != nil {
		return fmt.Errorf("read %s: %w", m.GetPath(), err)
	}
	return w.Flush()
}

// first is the error of a client that sent nothing.
func first(err error, what string) error {
	if err != nil {
		return err
	}
	return errNoOpen(what)
}

// chunk returns the next message's data, or io.EOF.
func chunk[T any](stream *connect.ClientStream[T], data func(*T) []byte) ([]byte, error) {
	if stream.Receive() {
		return data(stream.Msg()), nil
	}
	if err := stream.Err(); err != nil {
		return nil, fault.New(fault.Canceled, "the client went away: %w", err)
	}
	return nil, io.EOF
}

// messages reads a stream of messages' data.
type messages struct {
	next func() ([]byte, error)
	rest []byte
	err  error
}

func (m *messages) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		if m.err != nil {
			return 0, m.err
		}
		m.rest, m.err = m.next()
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// sender writes by sending messages.
type sender func(p []byte) error

func (s sender) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, sendSize)
		if err := s(p[done : done+n]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return done, err
		}
		done += n
	}
	return done, nil
}
