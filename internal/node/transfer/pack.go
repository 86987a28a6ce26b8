package transfer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// rootName is what the root directory is called in a tar.
const rootName = "rootfs"

// Pack writes a file or directory of the sandbox as a tar, whose names begin
// with the last element of the path, or with "rootfs" for the root directory. follow packs what a symbolic link at the
// path points to; links below it are packed as links.
func (r Root) Pack(ctx context.Context, name string, follow bool, dst io.Writer) error {
	e, err := r.Stat(ctx, name, !follow)
	if err != nil {
		return err
	}
	if !isDir(e.Mode) && !isFile(e.Mode) && !isLink(e.Mode) {
		return fault.New(fault.Invalid, "%s: a device, pipe or socket", name).
			WithHint("only regular files, directories and links are copied")
	}
	p := packer{root: r, t: tar.NewWriter(dst), buf: make([]byte, bufferSize)}
	clean := path.Clean("/" + name)
	base := path.Base(clean)
	if base == "/" {
		base = rootName
	}
	if err := p.pack(ctx, clean, base, e, 0); err != nil {
		return err
	}
	return p.t.Close()
}

type packer struct {
	root Root
	t    *tar.Writer
	buf  []byte
}

// pack writes the file at a path under a name of the tar.
func (p *packer) pack(ctx context.Context, at, name string, e control.Entry, depth int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	h := &tar.Header{Name: name, Mode: int64(e.Mode & 0o7777), Uid: e.UID, Gid: e.GID, ModTime: e.MTime, Format: tar.FormatPAX}
	switch {
	case isDir(e.Mode):
		return p.dir(ctx, at, h, depth)
	case isLink(e.Mode):
		reply, _, err := p.root(ctx, control.FileRequest{Op: control.FileReadlink, Path: at})
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, reply.Entry.Target
		return p.header(h)
	case isFile(e.Mode):
		return p.file(ctx, at, h)
	}
	return nil
}

func (p *packer) header(h *tar.Header) error {
	if err := p.t.WriteHeader(h); err != nil {
		return fmt.Errorf("pack %s: %w", h.Name, err)
	}
	return nil
}

func (p *packer) dir(ctx context.Context, at string, h *tar.Header, depth int) error {
	if depth > maxDepth {
		return fault.New(fault.Invalid, "%.100s…: more than %d directories in one another", at, maxDepth)
	}
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	if err := p.header(h); err != nil {
		return err
	}
	reply, _, err := p.root(ctx, control.FileRequest{Op: control.FileList, Path: at})
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	for _, e := range reply.Entries {
		if e.Name == "" || e.Name == "." || e.Name == ".." || path.Base(e.Name) != e.Name {
			return fault.New(fault.Internal, "%s: an entry is called %q", at, e.Name)
		}
		err := p.pack(ctx, path.Join(at, e.Name), name+"/"+e.Name, e, depth+1)
		if fault.Is(err, fault.NotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// file packs a regular file as long as it is when it is opened. One that
// shrinks meanwhile is filled up with zeros, one that grows is cut.
func (p *packer) file(ctx context.Context, at string, h *tar.Header) error {
	f, err := p.root.Open(ctx, at)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.header(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.t}, reader{ctx, io.LimitReader(f, h.Size)}, p.buf)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	clear(p.buf)
	for n < h.Size {
		m, err := p.t.Write(p.buf[:min(int64(len(p.buf)), h.Size-n)])
		if err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		n += int64(m)
	}
	return nil
}

// ReadFile writes one regular file's content.
func (r Root) ReadFile(ctx context.Context, name string, dst io.Writer) error {
	f, err := r.Open(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.CopyBuffer(struct{ io.Writer }{dst}, reader{ctx, f}, make([]byte, bufferSize))
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}
