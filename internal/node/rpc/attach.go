package rpc

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/node/session"
)

// maxInputs is how many pieces of input wait for a command that does not
// read, before the client must wait too. A resize or a signal that came after
// them does not wait for the command.
const maxInputs = 8

// errDetached ends a follower whose client said goodbye.
var errDetached = errors.New("detached")

type attachStream = connect.BidiStream[sandtreev1.AttachRequest, sandtreev1.AttachResponse]

func (h *sessions) Attach(ctx context.Context, stream *attachStream) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	se, follower, release, err := h.open(ctx, first.GetOpen())
	if err != nil {
		return err
	}
	defer release()
	defer follower.Close()
	err = stream.Send(&sandtreev1.AttachResponse{Message: &sandtreev1.AttachResponse_Session{Session: toSession(lifecycle.State(se))}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := newInputs()
	go in.feed(ctx)
	go func() {
		if err := receive(ctx, stream, se, in); err != nil {
			cancel(err)
		}
	}()
	err = follower.Run(ctx, func(e session.Event) error { return stream.Send(toEvent(se, e)) })
	if errors.Is(context.Cause(ctx), errDetached) {
		return stream.Send(&sandtreev1.AttachResponse{Message: &sandtreev1.AttachResponse_Detached{Detached: true}})
	}
	return err
}

// open starts a session or finds one, with a follower.
func (h *sessions) open(ctx context.Context, open *sandtreev1.AttachOpen) (se *session.Session, f *session.Follower, release func(), err error) {
	switch t := open.GetTarget().(type) {
	case *sandtreev1.AttachOpen_Exec:
		o := execOptions(t.Exec)
		o.Follow = func(se *session.Session) { f = se.Follow(&session.Position{}, true) }
		se, release, err = h.s.Exec(ctx, t.Exec.GetSandbox(), o)
		if err != nil && f != nil {
			f.Close()
		}
		return se, f, release, err
	case *sandtreev1.AttachOpen_Session:
		se, release, err = h.s.Session(ctx, t.Session, open.GetSandbox())
		if err != nil {
			return nil, nil, nil, err
		}
		var from *session.Position
		if p := open.GetFrom(); p != nil {
			from = &session.Position{Stdout: p.GetStdoutOffset(), Stderr: p.GetStderrOffset()}
		}
		return se, se.Follow(from, !open.GetNoFollow()), release, nil
	}
	return nil, nil, nil, errNoOpen("attach")
}

// inputs are what a client typed and the command has not taken yet, in order.
type inputs struct {
	queue   chan func(context.Context) error
	waiting atomic.Int64 // in the queue, or under way
}

func newInputs() *inputs {
	return &inputs{queue: make(chan func(context.Context) error, maxInputs)}
}

// put puts one at the end; it is dropped when ctx ends.
func (in *inputs) put(ctx context.Context, f func(context.Context) error) bool {
	in.waiting.Add(1)
	select {
	case in.queue <- f:
		return true
	case <-ctx.Done():
		in.waiting.Add(-1)
		return false
	}
}

// feed passes input on.
func (in *inputs) feed(ctx context.Context) {
	for {
		select {
		case f := <-in.queue:
			err := f(ctx)
			in.waiting.Add(-1)
			if err != nil {
				return // the client is gone, or the session is
			}
		case <-ctx.Done():
			return
		}
	}
}

// write passes bytes on at once if nothing waits before them, as far as the
// command takes them, and puts the rest at the end.
func (in *inputs) write(se *session.Session, p []byte) (rest func(context.Context) error) {
	if in.waiting.Load() == 0 {
		p = p[se.WriteNow(p):]
	}
	if len(p) == 0 {
		return nil
	}
	return func(ctx context.Context) error { return se.WriteInput(ctx, p) }
}

// receive takes what a client sends until it stops sending, which is no
// detach, or is gone, which is one.
func receive(ctx context.Context, stream *attachStream, se *session.Session, in *inputs) error {
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var input func(context.Context) error
		switch m := m.GetMessage().(type) {
		case *sandtreev1.AttachRequest_Stdin:
			input = in.write(se, m.Stdin)
		case *sandtreev1.AttachRequest_CloseStdin:
			input = se.CloseInput
		case *sandtreev1.AttachRequest_Resize:
			err = se.Resize(ctx, toWindow(m.Resize))
		case *sandtreev1.AttachRequest_Signal:
			if m.Signal < 1 || m.Signal > 64 {
				return fault.New(fault.Invalid, "signal %d: not 1 to 64", m.Signal)
			}
			err = se.Signal(ctx, int(m.Signal))
		case *sandtreev1.AttachRequest_Detach:
			in.flush(ctx)
			return errDetached
		default:
			return fault.New(fault.Invalid, "attach: a message of an unknown kind")
		}
		if err != nil && !fault.Is(err, fault.Conflict) && !fault.Is(err, fault.NotFound) {
			return err // otherwise it has just ended, as the client will see
		}
		if input == nil {
			continue
		}
		if !in.put(ctx, input) {
			return nil
		}
	}
}

// flushTime is how long a client that detaches waits for a command that does
// not read what was typed before.
const flushTime = time.Second

// flush waits until the input so far was passed on.
func (in *inputs) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	done := make(chan struct{})
	if !in.put(ctx, func(context.Context) error { close(done); return nil }) {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func toEvent(se *session.Session, e session.Event) *sandtreev1.AttachResponse {
	m := &sandtreev1.AttachResponse{}
	switch e := e.(type) {
	case session.Output:
		m.Message = &sandtreev1.AttachResponse_Output{Output: &sandtreev1.Output{
			Stream: sandtreev1.Stream(e.Stream + 1), Generation: e.Generation, Offset: e.Offset, Data: e.Data, //nolint:gosec // 1 or 2
		}}
	case session.Rebirth:
		m.Message = &sandtreev1.AttachResponse_Rebirth{Rebirth: &sandtreev1.Rebirth{
			Generation: e.Generation, Checkpoint: e.Checkpoint,
			Position: &sandtreev1.LogPosition{StdoutOffset: e.Stdout, StderrOffset: e.Stderr},
		}}
	case session.End:
		st := lifecycle.State(se)
		st.Session = e.Record
		m.Message = &sandtreev1.AttachResponse_End{End: toSession(st)}
	}
	return m
}
