package wire

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/sandtree/sandtree/internal/fault"
)

// Handler serves one verb. files are closed when it returns; the files it
// returns are closed when they were sent. ctx ends when the caller gives up or
// is gone. Handlers of one peer run concurrently.
type Handler func(ctx context.Context, params json.RawMessage, files []*os.File) (result any, out []*os.File, err error)

// Mux maps verbs to handlers. It is filled before it serves.
type Mux struct {
	handlers map[string]Handler
}

// NewMux returns a mux that knows no verb.
func NewMux() *Mux { return &Mux{handlers: map[string]Handler{}} }

// Handle registers a handler; a verb that is there already is a defect of the
// program and panics.
func (m *Mux) Handle(verb string, h Handler) {
	if _, ok := m.handlers[verb]; ok {
		panic(fmt.Sprintf("wire: verb %q has two handlers", verb))
	}
	m.handlers[verb] = h
}

// Handle registers a handler with typed parameters and result. Parameters that
// do not decode are refused with [fault.Invalid].
func Handle[Req, Resp any](m *Mux, verb string, h func(ctx context.Context, req Req, files []*os.File) (Resp, []*os.File, error)) {
	m.Handle(verb, func(ctx context.Context, params json.RawMessage, files []*os.File) (any, []*os.File, error) {
		var req Req
		if len(params) > 0 {
			if err := json.Unmarshal(params, &req); err != nil {
				return nil, nil, fault.New(fault.Invalid, "parameters: %w", err)
			}
		}
		return h(ctx, req, files)
	})
}

// Call calls a verb with typed parameters and result. The files returned are
// the caller's to close.
func Call[Resp, Req any](ctx context.Context, c *Conn, verb string, req Req, files ...*os.File) (Resp, []*os.File, error) {
	var resp Resp
	data, err := json.Marshal(req)
	if err != nil {
		return resp, nil, fault.New(fault.Internal, "%s: encode parameters: %w", verb, err)
	}
	res, out, err := c.Call(ctx, verb, data, files...)
	if err != nil {
		return resp, nil, err
	}
	if len(res) > 0 {
		if err := json.Unmarshal(res, &resp); err != nil {
			closeAll(out)
			return resp, nil, fault.New(fault.Internal, "%s: decode result: %w", verb, err)
		}
	}
	return resp, out, nil
}

// None is the parameter or result of a verb that has none.
type None struct{}
