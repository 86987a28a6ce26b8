// Package cause finds the kind of errors that come from the system and from
// libraries, for the parts of images. An error that has a kind keeps it.
package cause

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// System gives a kind to an error of a context (Canceled, Deadline) or of a
// system call: Exhausted for a full disk, NotFound, Permission. Others are
// returned as they are.
func System(err error) error {
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
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.NotFound, "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.Permission, "%w", err)
	}
	return err
}

// Tar does as [System] for an error of reading or writing a tar, and gives the
// kind Invalid to one of a stream that is truncated or damaged.
func Tar(err error) error {
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.New(fault.Invalid, "truncated tar: %w", err)
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return fault.New(fault.Invalid, "not a tar, or a damaged one: %w", err)
	}
	return System(err)
}

// Reader reads from R until the context ends, which is an error with a kind.
type Reader struct {
	Ctx context.Context
	R   io.Reader
}

func (r Reader) Read(p []byte) (int, error) {
	if err := r.Ctx.Err(); err != nil {
		return 0, System(err)
	}
	return r.R.Read(p)
}
