package wire

import (
	"context"
	"errors"

	"github.com/sandtree/sandtree/internal/fault"
)

// failure is an error on its way to the caller.
type failure struct {
	Kind fault.Kind `json:"kind"`
	Text string     `json:"text"`
	Hint string     `json:"hint,omitempty"`
}

func failureOf(err error) *failure {
	kind := fault.KindOf(err)
	if kind == fault.Internal {
		// A context's error has no kind of its own.
		switch {
		case errors.Is(err, context.Canceled):
			kind = fault.Canceled
		case errors.Is(err, context.DeadlineExceeded):
			kind = fault.Deadline
		}
	}
	return &failure{Kind: kind, Text: err.Error(), Hint: fault.HintOf(err)}
}

func (f *failure) err() error {
	return &fault.Error{Kind: f.Kind, Hint: f.Hint, Err: errors.New(f.Text)}
}

// ended is the error of a call whose context ended.
func ended(ctx context.Context, verb string) error {
	kind := fault.Canceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = fault.Deadline
	}
	return fault.New(kind, "%s: %w", verb, context.Cause(ctx))
}
