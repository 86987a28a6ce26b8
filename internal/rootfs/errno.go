package rootfs

import (
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Errorf makes an error with the kind that its cause, an errno in the chain,
// has for a store. Kinds that are there already stay.
func Errorf(format string, a ...any) error {
	e := fault.New(fault.Internal, format, a...)
	var known *fault.Error
	switch err := e.Err; {
	case errors.As(err, &known):
		e.Kind = known.Kind
	case errors.Is(err, unix.EDQUOT):
		e.Kind = fault.Exhausted
		e.Hint = "the sandbox's disk limit is reached: remove checkpoints or files, or raise --disk"
	case errors.Is(err, unix.ENOSPC):
		e.Kind = fault.Exhausted
		e.Hint = "the pool or the host's disk is full: remove checkpoints or sandboxes, or make room on the host"
	case errors.Is(err, context.Canceled):
		e.Kind = fault.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind = fault.Deadline
	case errors.Is(err, fs.ErrNotExist):
		e.Kind = fault.NotFound
	case errors.Is(err, fs.ErrExist):
		e.Kind = fault.Exists
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOTTY):
		e.Kind = fault.Unsupported
	}
	return e
}
