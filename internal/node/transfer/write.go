package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// WriteFile makes or replaces one regular file. It has its name when it is whole:
// an error leaves what was there before, and no half file. A file behind a symbolic
// link is the exception, its content is written over.
func (r Root) WriteFile(ctx context.Context, name string, mode uint32, uid, gid int, content io.Reader) (int64, error) {
	return r.write(ctx, control.FileRequest{Path: name, Mode: mode & 0o7777, UID: uid, GID: gid}, content)
}

func (r Root) write(ctx context.Context, req control.FileRequest, content io.Reader) (int64, error) {
	buf := make([]byte, bufferSize)
	in := reader{ctx, content}
	n, err := fill(in, buf)
	if errors.Is(err, io.EOF) {
		// All of it is here: nothing but the disk can stop it in the middle.
		return r.through(ctx, req, buf[:n], nil, nil)
	}
	if err != nil {
		return 0, classify(err, req.Path)
	}
	e, err := r.Stat(ctx, req.Path, true)
	switch {
	case fault.Is(err, fault.NotFound):
	case err != nil:
		return 0, err
	case !isFile(e.Mode):
		return r.through(ctx, req, buf, in, make([]byte, bufferSize))
	}
	half := req
	half.Path = path.Join(path.Dir(req.Path), ".sandtree-"+rand.Text())
	done, err := r.through(ctx, half, buf, in, make([]byte, bufferSize))
	if err == nil {
		_, _, err = r(ctx, control.FileRequest{Op: control.FileRename, Path: half.Path, Target: req.Path})
	}
	if err != nil {
		if _, _, rmErr := r(context.WithoutCancel(ctx), control.FileRequest{Op: control.FileRemove, Path: half.Path}); rmErr != nil && !fault.Is(rmErr, fault.NotFound) {
			err = errors.Join(err, rmErr)
		}
		return done, err
	}
	return done, nil
}

// fill reads until the buffer is full, or an error, which is io.EOF at the end.
func fill(in io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = in.Read(buf[n:])
		n += m
	}
	return n, err
}

// through writes a beginning and the rest, if there is one, to the file at a path.
func (r Root) through(ctx context.Context, req control.FileRequest, begin []byte, rest io.Reader, buf []byte) (int64, error) {
	f, err := r.Create(ctx, req.Path, req.Mode, req.UID, req.GID)
	if err != nil {
		return 0, err
	}
	n, err := copyAll(f, begin, rest, buf)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return n, classify(err, req.Path)
	}
	return n, nil
}

func copyAll(f *os.File, begin []byte, rest io.Reader, buf []byte) (int64, error) {
	m, err := f.Write(begin)
	if err != nil || rest == nil {
		return int64(m), err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, rest, buf)
	return int64(m) + n, err
}
