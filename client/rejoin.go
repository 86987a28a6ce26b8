package client

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// A session outlives the process of the daemon that serves its clients. An
// attachment whose connection breaks joins the session again, where its output
// had got to; input that was under way is lost.
const (
	// rejoinWithin is how long it tries: the daemon starts that process anew
	// within a second.
	rejoinWithin = 10 * time.Second
	// rejoinEvery is the time between two tries.
	rejoinEvery = 50 * time.Millisecond
)

// cutOff reports whether a connection broke, as opposed to an answer of the
// daemon's.
func (a *Attachment) cutOff(err error) bool {
	var ce *connect.Error
	return a.ctx.Err() == nil && errors.As(err, &ce) && !connect.IsWireError(ce)
}

// rejoin joins the session again on a connection of its own. It reports whether
// it did.
func (a *Attachment) rejoin() bool {
	open := &sandtreev1.AttachOpen{
		Target: &sandtreev1.AttachOpen_Session{Session: a.Session.ID}, Sandbox: a.open.GetSandbox(), NoFollow: a.open.GetNoFollow(),
		From: &sandtreev1.LogPosition{StdoutOffset: a.place.Stdout, StderrOffset: a.place.Stderr},
	}
	for end := time.Now().Add(rejoinWithin); time.Now().Before(end); {
		stream, _, err := a.c.join(a.ctx, open)
		if err == nil {
			a.mu.Lock()
			a.stream = stream
			a.epoch++
			a.joined.Broadcast()
			a.mu.Unlock()
			return true
		}
		if !a.cutOff(err) {
			break // the daemon's answer, or nobody waits any more
		}
		select {
		case <-a.ctx.Done():
		case <-time.After(rejoinEvery):
		}
	}
	a.mu.Lock()
	a.over = true
	a.joined.Broadcast()
	a.mu.Unlock()
	return false
}

// retry waits, after a failure to send in an epoch, until the attachment has
// joined again. It reports whether it has.
func (a *Attachment) retry(epoch int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.epoch == epoch && !a.over {
		a.joined.Wait()
	}
	return a.epoch != epoch
}

// join opens a stream to a session and returns it with the session as it was
// found. Errors are the transport's own.
func (c *Client) join(ctx context.Context, open *sandtreev1.AttachOpen) (*connect.BidiStreamForClient[sandtreev1.AttachRequest, sandtreev1.AttachResponse], *sandtreev1.AttachResponse, error) {
	stream := c.sessions.Attach(ctx)
	// The transport notices the context's end only when something is sent or
	// comes, and a stream that nobody leaves stays attached.
	context.AfterFunc(ctx, func() { _ = stream.CloseResponse() })
	// An error of Send shows itself, with its reason, in Receive.
	err := stream.Send(&sandtreev1.AttachRequest{Message: &sandtreev1.AttachRequest_Open{Open: open}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	m, err := stream.Receive()
	return stream, m, err
}
