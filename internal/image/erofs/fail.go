package erofs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// classify gives an error of the system a kind: a full disk is Exhausted, a
// cancelled context Canceled or Deadline. Errors that have a kind keep it.
func classify(err error) error {
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f):
		return err
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Canceled, "%w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Deadline, "%w", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		return fault.New(fault.Exhausted, "%w", err).WithHint("free space on the disk of the state directory")
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fault.New(fault.Permission, "%w", err)
	}
	return err
}
