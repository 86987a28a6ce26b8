// Package transfer turns tars into files of a sandbox and back.
//
// It sees a sandbox only through file operations that its supervisor does
// inside the sandbox's root, which no path leaves; contents move through
// descriptors. Both sides are hostile: names in a tar stay below the directory
// it is unpacked into, as far as the sandbox's own links do not lead elsewhere
// in the sandbox, and what a sandbox shows is packed as data: regular files,
// directories and symbolic links. Sockets, pipes and devices are left out.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// maxDepth bounds the directories in one another that are packed.
const maxDepth = 1024

// bufferSize is how much content moves at once, in bytes.
const bufferSize = 256 << 10

// Root does file operations in one sandbox's root.
type Root func(ctx context.Context, req control.FileRequest) (control.FileReply, *os.File, error)

// Stat describes a file.
func (r Root) Stat(ctx context.Context, path string, noFollow bool) (control.Entry, error) {
	if path == "" {
		return control.Entry{}, fault.New(fault.Invalid, "no path is given")
	}
	reply, _, err := r(ctx, control.FileRequest{Op: control.FileStat, Path: path, NoFollow: noFollow})
	return reply.Entry, err
}

// Open opens a regular file for reading.
func (r Root) Open(ctx context.Context, path string) (*os.File, error) {
	_, f, err := r(ctx, control.FileRequest{Op: control.FileOpen, Path: path})
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fault.New(fault.Invalid, "%s: not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Create makes or empties a regular file.
func (r Root) Create(ctx context.Context, path string, mode uint32, uid, gid int) (*os.File, error) {
	_, f, err := r(ctx, control.FileRequest{Op: control.FileCreate, Path: path, Mode: mode, UID: uid, GID: gid})
	return f, err
}

func isDir(mode uint32) bool  { return mode&unix.S_IFMT == unix.S_IFDIR }
func isFile(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFREG }
func isLink(mode uint32) bool { return mode&unix.S_IFMT == unix.S_IFLNK }

// classify gives an error of writing into a sandbox its kind.
func classify(err error, what string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.Exhausted, "%s: %w", what, err).WithHint("the sandbox's disk is full")
	}
	return fmt.Errorf("%s: %w", what, err)
}

// reader is an io.Reader that ends with a context.
type reader struct {
	ctx context.Context
	r   interface{ Read([]byte) (int, error) }
}

func (r reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
