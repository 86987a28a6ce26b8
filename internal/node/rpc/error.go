package rpc

import (
	"context"
	"errors"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/fault"
)

// toConnect makes an error of the protocol: the kind's code, and a detail with
// kind and hint.
func toConnect(err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return err
	}
	kind := fault.KindOf(err)
	if kind == fault.Internal {
		switch {
		case errors.Is(err, context.Canceled):
			kind = fault.Canceled
		case errors.Is(err, context.DeadlineExceeded):
			kind = fault.Deadline
		}
	}
	code := connect.CodeInternal
	if e := code.UnmarshalText([]byte(fault.Code(kind).RPC)); e != nil {
		code = connect.CodeInternal
	}
	e := connect.NewError(code, err)
	if d, derr := connect.NewErrorDetail(&sandtreev1.Fault{Kind: string(kind), Hint: fault.HintOf(err)}); derr == nil {
		e.AddDetail(d)
	}
	return e
}

// faults is the interceptor that gives every error its code and detail.
type faults struct{}

func (faults) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		r, err := next(ctx, req)
		return r, toConnect(err)
	}
}

func (faults) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (faults) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return toConnect(next(ctx, conn))
	}
}
