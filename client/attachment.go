package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// Event is something that an attachment reports: an [Output], a [Rebirth], an
// [End] or a [Detached].
type Event interface{ event() }

// Stream is one of a session's output streams.
type Stream int

// The streams. A terminal's output is Stdout alone.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// Output is a piece of a session's output.
type Output struct {
	Stream     Stream
	Generation uint64
	// Offset of Data's first byte in the stream's log. A jump means that the
	// log was cut there: it had reached its bound while nobody was attached.
	Offset uint64
	Data   []byte // valid until the next event
}

// Rebirth says that the sandbox was rolled back to a checkpoint that holds
// this session: what follows is output of the restored processes.
type Rebirth struct {
	Generation uint64
	Checkpoint string
	// From is where the output of this generation begins.
	From Position
}

// End is the last event: the session has ended and all of its output was
// reported.
type End struct{ Session SessionInfo }

// Detached is the last event after [Attachment.Detach].
type Detached struct{}

func (Output) event()   {}
func (Rebirth) event()  {}
func (End) event()      {}
func (Detached) event() {}

// Attachment is one connection to a session. Events are read by one goroutine
// ([Attachment.Next] or [Attachment.Copy]); everything else may be called
// from any.
type Attachment struct {
	// Session is the session as it was found.
	Session SessionInfo

	c      *Client
	ctx    context.Context // of the attachment: streams come and go
	cancel context.CancelFunc
	open   *sandtreev1.AttachOpen
	place  Position // up to where output was reported

	mu     sync.Mutex // orders what is sent, and guards what follows
	stream *connect.BidiStreamForClient[sandtreev1.AttachRequest, sandtreev1.AttachResponse]
	epoch  int  // counts streams
	over   bool // there will be no other stream
	joined *sync.Cond
}

func (c *Client) attach(ctx context.Context, open *sandtreev1.AttachOpen) (*Attachment, error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &Attachment{c: c, ctx: ctx, cancel: cancel, open: open}
	a.joined = sync.NewCond(&a.mu)
	stream, m, err := c.join(ctx, open)
	if err != nil {
		cancel()
		return nil, wrap(err)
	}
	first, ok := m.GetMessage().(*sandtreev1.AttachResponse_Session)
	if !ok {
		cancel()
		return nil, &Error{Kind: Internal, Message: fmt.Sprintf("attach: the daemon sent %T before the session", m.GetMessage())}
	}
	a.stream = stream
	a.Session = fromSession(first.Session)
	switch from := open.GetFrom(); {
	case open.GetExec() != nil: // from the beginning
	case from != nil:
		a.place = Position{Stdout: from.GetStdoutOffset(), Stderr: from.GetStderrOffset()}
	default: // what a stream had at first is not shown twice
		a.place = Position{Stdout: a.Session.StdoutBytes, Stderr: a.Session.StderrBytes}
	}
	return a, nil
}

// Next waits for the next event. After [End] or [Detached] it returns io.EOF.
func (a *Attachment) Next() (Event, error) {
	for {
		m, err := a.stream.Receive()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			a.end()
			return nil, io.EOF
		case a.cutOff(err) && a.rejoin():
			continue
		default:
			a.end()
			return nil, wrap(err)
		}
		switch m := m.GetMessage().(type) {
		case *sandtreev1.AttachResponse_Output:
			o := m.Output
			a.reported(Stream(o.GetStream()), o.GetOffset()+uint64(len(o.GetData())))
			return Output{Stream: Stream(o.GetStream()), Generation: o.GetGeneration(), Offset: o.GetOffset(), Data: o.GetData()}, nil
		case *sandtreev1.AttachResponse_Rebirth:
			r := m.Rebirth
			return Rebirth{
				Generation: r.GetGeneration(), Checkpoint: r.GetCheckpoint(),
				From: Position{Stdout: r.GetPosition().GetStdoutOffset(), Stderr: r.GetPosition().GetStderrOffset()},
			}, nil
		case *sandtreev1.AttachResponse_End:
			a.end()
			return End{Session: fromSession(m.End)}, nil
		case *sandtreev1.AttachResponse_Detached:
			a.end()
			return Detached{}, nil
		}
		// What a newer daemon may send is skipped.
	}
}

// reported notes up to where a stream's output was reported.
func (a *Attachment) reported(s Stream, offset uint64) {
	if s == Stderr {
		a.place.Stderr = offset
	} else {
		a.place.Stdout = offset
	}
}

// end tells those who wait for another stream that there will be none.
func (a *Attachment) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	a.joined.Broadcast()
}

// Write sends data to the session's standard input. It blocks when the
// command does not read.
func (a *Attachment) Write(p []byte) (int, error) {
	const chunk = 32 << 10
	done := 0
	for done < len(p) {
		n := min(len(p)-done, chunk)
		err := a.send(&sandtreev1.AttachRequest{Message: &sandtreev1.AttachRequest_Stdin{Stdin: p[done : done+n]}})
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// CloseStdin ends the session's standard input. On a terminal it types the
// end-of-file character.
func (a *Attachment) CloseStdin() error {
	return a.send(&sandtreev1.AttachRequest{Message: &sandtreev1.AttachRequest_CloseStdin{CloseStdin: true}})
}

// Resize sets the size of the session's terminal.
func (a *Attachment) Resize(w Window) error {
	return a.send(&sandtreev1.AttachRequest{Message: &sandtreev1.AttachRequest_Resize{Resize: toWindow(w)}})
}

// Signal sends a signal to the session's process group.
func (a *Attachment) Signal(n int) error {
	return a.send(&sandtreev1.AttachRequest{Message: &sandtreev1.AttachRequest_Signal{Signal: toSignal(n)}})
}

// Detach leaves the session running; the last event confirms it.
func (a *Attachment) Detach() error {
	return a.send(&sandtreev1.AttachRequest{Message: &sandtreev1.AttachRequest_Detach{Detach: true}})
}

// Close ends the attachment at once. The session goes on.
func (a *Attachment) Close() error {
	a.cancel()
	a.end()
	return nil
}

func (a *Attachment) send(m *sandtreev1.AttachRequest) error {
	for {
		a.mu.Lock()
		epoch, err := a.epoch, a.stream.Send(m)
		a.mu.Unlock()
		if err == nil {
			return nil
		}
		if a.retry(epoch) {
			continue
		}
		if errors.Is(err, io.EOF) {
			return io.EOF // the daemon ended the stream: Next says why
		}
		return wrap(err)
	}
}

// Stdio is where a session's streams go. A nil reader sends nothing, a nil
// writer drops what comes.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
	// OnRebirth is called for a [Rebirth], between the outputs around it.
	OnRebirth func(Rebirth)
}

// Copy pumps the streams until the session ends, and returns its final state.
// The input is closed when In ends. If the session was left with
// [Attachment.Detach], the state that is returned has not ended.
//
// Copy does not wait for a Read of In that blocks when the session ends: that
// goroutine ends with its next Read.
func (a *Attachment) Copy(s Stdio) (SessionInfo, error) {
	if s.In != nil {
		go a.pump(s.In)
	}
	for {
		e, err := a.Next()
		if errors.Is(err, io.EOF) {
			return a.Session, &Error{Kind: Unavailable, Message: "session " + a.Session.ID + ": the daemon ended the stream before the session's end"}
		}
		if err != nil {
			return a.Session, err
		}
		switch e := e.(type) {
		case Output:
			w := s.Out
			if e.Stream == Stderr {
				w = s.Err
			}
			if w == nil {
				continue
			}
			if _, err := w.Write(e.Data); err != nil {
				return a.Session, err
			}
		case Rebirth:
			if s.OnRebirth != nil {
				s.OnRebirth(e)
			}
		case End:
			return e.Session, nil
		case Detached:
			return a.Session, nil
		}
	}
}

// pump sends all of r and closes the input. Errors are left to Next, which
// knows why the stream ended.
func (a *Attachment) pump(r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := a.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = a.CloseStdin()
			return
		}
	}
}
