package control

import (
	"context"
	"os"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/wire"
)

// Client calls a worker's verbs. Errors are the worker's, or of kind
// fault.Unavailable when it is gone.
type Client struct{ *wire.Conn }

// NewClient makes a client of a connected socket, which belongs to it from now
// on, whatever it returns.
func NewClient(socket *os.File) (*Client, error) {
	conn, err := wire.Open(socket)
	if err != nil {
		return nil, err
	}
	return &Client{wire.NewConn(conn, nil)}, nil
}

func call[Resp, Req any](ctx context.Context, c *Client, verb string, req Req, files ...*os.File) (Resp, error) {
	resp, got, err := wire.Call[Resp](ctx, c.Conn, verb, req, files...)
	closeAll(got)
	return resp, err
}

// Attach gives the worker the gate that its work is to pass.
func (c *Client) Attach(ctx context.Context, gate *Gate) error {
	_, err := call[wire.None](ctx, c, VerbAttach, wire.None{}, gate.file)
	return err
}

// Write writes a checkpoint. It is durable when Write returns without error.
func (c *Client) Write(ctx context.Context, k Checkpoint) (durable.Info, error) {
	files, err := pack(k)
	if err != nil {
		return durable.Info{}, err
	}
	defer closeAll(files)
	return call[durable.Info](ctx, c, VerbWrite, wire.None{}, files...)
}

// List lists the records.
func (c *Client) List(ctx context.Context) (ListReply, error) {
	return call[ListReply](ctx, c, VerbList, wire.None{})
}

// Read reads a record. The files in it are the caller's.
func (c *Client) Read(ctx context.Context, id string) (Stored, error) {
	_, files, err := wire.Call[wire.None](ctx, c.Conn, VerbRead, RecordRequest{id})
	if err != nil {
		return Stored{}, err
	}
	defer closeAll(files)
	var s Stored
	return s, Unpack(files, &s)
}

// Unpack writes a record's files into an empty directory of rootfs.Store.Content.
func (c *Client) Unpack(ctx context.Context, id string, dir *os.File) error {
	_, err := call[wire.None](ctx, c, VerbUnpack, RecordRequest{id}, dir)
	return err
}

// Remove takes a record away, durably. Its space comes back later.
func (c *Client) Remove(ctx context.Context, id string) error {
	_, err := call[wire.None](ctx, c, VerbRemove, RecordRequest{id})
	return err
}

// Verify reads all of some records and compares every checksum.
func (c *Client) Verify(ctx context.Context, ids ...string) ([]durable.Problem, error) {
	r, err := call[VerifyReply](ctx, c, VerbVerify, RecordsRequest{ids})
	return r.Problems, err
}

// Export writes records to a file, with all that they need.
func (c *Client) Export(ctx context.Context, to *os.File, req ExportRequest) error {
	_, err := call[wire.None](ctx, c, VerbExport, req, to)
	return err
}

// Import reads what Export wrote, all or nothing.
func (c *Client) Import(ctx context.Context, from *os.File, r ImportRequest) ([]durable.Info, error) {
	l, err := call[ListReply](ctx, c, VerbImport, r, from)
	return l.Records, err
}

// Serve hands the worker a client's socket, which stays the caller's. For the
// host.
func (c *Client) Serve(ctx context.Context, socket *os.File) error {
	_, _, err := wire.Call[wire.None](ctx, c.Conn, VerbClient, wire.None{}, socket)
	return err
}
