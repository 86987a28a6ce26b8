package client

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// text is an interceptor that refuses a request which protocol buffers cannot carry,
// since a string in it is not UTF-8, before anything is sent. Else the call would go out
// without a message, which is the empty message: a sandbox of the default template would
// be made.
func text(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if m, ok := req.Any().(proto.Message); ok {
			if _, err := proto.Marshal(m); err != nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, err)
			}
		}
		return next(ctx, req)
	}
}
