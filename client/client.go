// Package client is the Go SDK of sandtree: Linux environments that can be
// checkpointed, rolled back and forked in milliseconds, files and processes
// together.
//
// A [Client] speaks to one daemon. A [Sandbox] is one environment; its
// [Session]s are commands that run in it, and an [Attachment] is one
// connection to a session's terminal or pipes. A [Checkpoint] is one instant
// of a sandbox, to which it can be rolled back and from which it can be
// forked.
//
// Every error of a call is an [*Error] that has an [ErrorKind]. All methods
// may be called from several goroutines at once.
package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/api/sandtree/v1/sandtreev1connect"
)

// baseURL names no host: every request goes to the socket.
const baseURL = "http://sandtree"

// Client speaks to one daemon over its unix socket.
type Client struct {
	first       *first
	transport   *http.Transport
	daemon      sandtreev1connect.DaemonClient
	sandboxes   sandtreev1connect.SandboxesClient
	sessions    sandtreev1connect.SessionsClient
	checkpoints sandtreev1connect.CheckpointsClient
	templates   sandtreev1connect.TemplatesClient
	images      sandtreev1connect.ImagesClient
	files       sandtreev1connect.FilesClient
}

// Dial connects to the daemon whose API socket is given. The error's kind is
// [Unavailable] if no daemon listens there. One that is busy with other clients is
// waited for, up to ten seconds; the kind is [Exhausted] if it still has no room then.
func Dial(socket string) (*Client, error) {
	// The first connection shows at once whether a daemon is there, and then
	// carries the first request.
	conn, err := dialFirst(socket)
	if err != nil {
		return nil, err
	}
	f := newFirst(conn)
	next := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if conn := f.take(time.Now()); conn != nil {
			return conn, nil
		}
		return dial(ctx, socket)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		DialContext:        next,
		Protocols:          &protocols,
		DisableCompression: true,
		IdleConnTimeout:    5 * time.Minute,
	}
	h := &http.Client{Transport: t}
	opts := connect.WithInterceptors(connect.UnaryInterceptorFunc(text))
	return &Client{
		first:       f,
		transport:   t,
		daemon:      sandtreev1connect.NewDaemonClient(h, baseURL, opts),
		sandboxes:   sandtreev1connect.NewSandboxesClient(h, baseURL, opts),
		sessions:    sandtreev1connect.NewSessionsClient(h, baseURL, opts),
		checkpoints: sandtreev1connect.NewCheckpointsClient(h, baseURL, opts),
		templates:   sandtreev1connect.NewTemplatesClient(h, baseURL, opts),
		images:      sandtreev1connect.NewImagesClient(h, baseURL, opts),
		files:       sandtreev1connect.NewFilesClient(h, baseURL, opts),
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() error {
	c.first.close()
	c.transport.CloseIdleConnections()
	return nil
}

// Info is what a daemon says about itself.
type Info struct {
	Version        string    `json:"version"`
	StateDirectory string    `json:"state_directory"`
	Socket         string    `json:"socket"`
	Tag            string    `json:"tag"` // the node's part of sandbox ids
	PID            int64     `json:"pid"`
	Started        time.Time `json:"started"`
	Kernel         string    `json:"kernel"`
	Running        int64     `json:"sandboxes_running"`
	Lost           int64     `json:"sandboxes_lost"`
	Sessions       int64     `json:"sessions_running"`
	Templates      int64     `json:"templates"`
	Images         int64     `json:"images"`
	Families       []Family  `json:"families"`
}

// Family is the unit that shares a supervisor: the sandboxes of one template.
type Family struct {
	ID        string `json:"id"`
	Template  string `json:"template"`
	Sandboxes int64  `json:"sandboxes"`
}

// Info asks the daemon what it is and what runs in it.
func (c *Client) Info(ctx context.Context) (Info, error) {
	r, err := c.daemon.Info(ctx, connect.NewRequest(&sandtreev1.InfoRequest{}))
	if err != nil {
		return Info{}, wrap(err)
	}
	m := r.Msg
	i := Info{
		Version: m.GetVersion(), StateDirectory: m.GetStateDirectory(), Socket: m.GetSocket(), Tag: m.GetTag(),
		PID: m.GetPid(), Started: m.GetStarted().AsTime(), Kernel: m.GetKernel(),
		Running: m.GetSandboxesRunning(), Lost: m.GetSandboxesLost(), Sessions: m.GetSessionsRunning(),
		Templates: m.GetTemplates(), Images: m.GetImages(), Families: []Family{},
	}
	for _, f := range m.GetFamilies() {
		i.Families = append(i.Families, Family{ID: f.GetId(), Template: f.GetTemplate(), Sandboxes: f.GetSandboxes()})
	}
	return i, nil
}

// reason shortens a dial error to the part that a user has not said himself.
func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}
