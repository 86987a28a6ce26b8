package control

import (
	"context"
	"encoding/json"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
)

// Client calls the host's verbs. Files it returns are the caller's.
type Client struct{ *wire.Conn }

// Events are called when the host reports something, one at a time and in
// order. A nil function drops its event.
type Events struct {
	SupervisorDied func(SupervisorDied)
	LowDisk        func(LowDisk)
	Stopping       func(Stopping)
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

// Inherited returns what the host gives a node at its start: its connection,
// and the listener of the API. It is called once, early in the process.
func Inherited(events Events) (*Client, net.Listener, error) {
	for _, fd := range []int{FDControl, FDListener, FDHeld} {
		unix.CloseOnExec(fd)
	}
	const hint = "this command is started by sandtree serve"
	c, err := NewClient(os.NewFile(FDControl, "control socket"), events)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "node: control socket: %w", err).WithHint(hint)
	}
	f := os.NewFile(FDListener, "API socket")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		c.Close()
		return nil, nil, fault.New(fault.Invalid, "node: API socket: %w", err).WithHint(hint)
	}
	return c, l, nil
}

func (e Events) handle(ev wire.Event) {
	switch ev.Name {
	case EventSupervisorDied:
		pass(ev, e.SupervisorDied)
	case EventLowDisk:
		pass(ev, e.LowDisk)
	case EventStopping:
		pass(ev, e.Stopping)
	}
}

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

// Info says what runs.
func (c *Client) Info(ctx context.Context) (Info, error) {
	return call[Info](ctx, c, VerbInfo, wire.None{})
}

// Ready says that this node serves the API.
func (c *Client) Ready(ctx context.Context) error {
	_, err := call[wire.None](ctx, c, VerbReady, wire.None{})
	return err
}

// EnsureFamily returns a running family, starting it if need be, with a new
// connection to its supervisor. Errors: [fault.Invalid]; [fault.NotFound] for
// a layer; [fault.Conflict] if the family runs with other layers; what the
// supervisor could not start for.
func (c *Client) EnsureFamily(ctx context.Context, req EnsureFamilyRequest) (Family, *os.File, error) {
	f, files, err := wire.Call[Family](ctx, c.Conn, VerbEnsureFamily, req)
	if err != nil {
		return Family{}, nil, err
	}
	if len(files) != 1 {
		closeAll(files)
		return Family{}, nil, fault.New(fault.Internal, "%s: %d descriptors, not one", VerbEnsureFamily, len(files))
	}
	return f, files[0], nil
}

// Families lists the running families, each with a new connection to its
// supervisor beside it.
func (c *Client) Families(ctx context.Context) ([]Family, []*os.File, error) {
	r, files, err := wire.Call[FamiliesReply](ctx, c.Conn, VerbFamilies, wire.None{})
	if err != nil {
		return nil, nil, err
	}
	if len(files) != len(r.Families) {
		closeAll(files)
		return nil, nil, fault.New(fault.Internal, "%s: %d descriptors for %d families", VerbFamilies, len(files), len(r.Families))
	}
	return r.Families, files, nil
}

// EndFamily ends a family with all its sandboxes and forgets it.
func (c *Client) EndFamily(ctx context.Context, family string) error {
	_, err := call[wire.None](ctx, c, VerbEndFamily, FamilyRequest{family})
	return err
}

// Stats are the host's figures.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return call[Stats](ctx, c, VerbStats, wire.None{})
}
