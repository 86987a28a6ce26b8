// Package disk writes files that are whole or not there, and gives errors of
// the disk their kinds.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Errorf makes an error with the kind that its cause has for a repository:
// Exhausted for a full disk, NotFound and Exists for names. Kinds that are there
// already stay.
func Errorf(format string, a ...any) error {
	e := fault.New(fault.Internal, format, a...)
	var known *fault.Error
	switch err := e.Err; {
	case errors.As(err, &known):
		e.Kind = known.Kind
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		e.Kind = fault.Exhausted
		e.Hint = "the disk is full: make room on it, or remove checkpoints; those that are durable are not harmed"
	case errors.Is(err, fs.ErrNotExist):
		e.Kind = fault.NotFound
	case errors.Is(err, fs.ErrExist):
		e.Kind = fault.Exists
	}
	return e
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Publish gives a file that is written and synced its name, which must be
// free: fs.ErrExist otherwise. The name is durable after [SyncDir].
func Publish(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // a file system that cannot do that
		if err = os.Link(from, to); err == nil {
			return os.Remove(from)
		}
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// WriteFile makes a file durable under its name, which must be free. It is
// written beside tmp, a name of the caller's on the same file system.
func WriteFile(tmp, name string, data []byte) (err error) {
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp)
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := Publish(tmp, name); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(name))
}
