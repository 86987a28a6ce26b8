package transfer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Owner replaces the owners in a tar.
type Owner struct{ UID, GID int }

// ParseOwner reads "uid:gid". An empty text means nil: the tar's owners.
func ParseOwner(s string) (*Owner, error) {
	if s == "" {
		return nil, nil
	}
	u, g, ok := strings.Cut(s, ":")
	uid, err := strconv.ParseUint(u, 10, 31)
	gid, err2 := strconv.ParseUint(g, 10, 31)
	if !ok || err != nil || err2 != nil {
		return nil, fault.New(fault.Invalid, "owner %q: not uid:gid in numbers", s)
	}
	return &Owner{int(uid), int(gid)}, nil
}

// Count is what was unpacked.
type Count struct{ Files, Bytes int64 }

// Unpack makes what a tar holds below an existing directory. Files that are
// there are replaced, see [Root.WriteFile]; directories are merged. It stops at the
// first error, and what was made until then stays.
func (r Root) Unpack(ctx context.Context, dir string, owner *Owner, src io.Reader) (Count, error) {
	var c Count
	e, err := r.Stat(ctx, dir, false)
	if err != nil {
		return c, err
	}
	if !isDir(e.Mode) {
		return c, fault.New(fault.Invalid, "%s: not a directory", dir)
	}
	t := tar.NewReader(reader{ctx, src})
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return c, context.Cause(ctx)
			}
			return c, fault.New(fault.Invalid, "read tar: %w", err)
		}
		n, err := r.unpackOne(ctx, dir, owner, h, t)
		c.Bytes += n
		if err != nil {
			return c, err
		}
		c.Files++
	}
}

// below returns where a tar's name is below a directory, wherever it points.
func below(dir, name string) string { return path.Join(dir, path.Clean("/"+name)) }

func (r Root) unpackOne(ctx context.Context, dir string, owner *Owner, h *tar.Header, content io.Reader) (int64, error) {
	if strings.Contains(h.Name, "\x00") || strings.Contains(h.Linkname, "\x00") {
		return 0, fault.New(fault.Invalid, "tar entry %q: a NUL byte in the name", h.Name)
	}
	req := control.FileRequest{
		Path: below(dir, h.Name), Mode: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid, //nolint:gosec // masked
	}
	if owner != nil {
		req.UID, req.GID = owner.UID, owner.GID
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return 0, r.mkdir(ctx, dir, req)
	case tar.TypeReg:
		return r.write(ctx, req, content)
	case tar.TypeSymlink:
		return 0, r.symlink(ctx, req, h.Linkname)
	case tar.TypeLink:
		f, err := r.Open(ctx, below(dir, h.Linkname))
		if err != nil {
			return 0, fmt.Errorf("tar entry %q: %w", h.Name, err)
		}
		defer func() { _ = f.Close() }()
		return r.write(ctx, req, f)
	case tar.TypeXGlobalHeader:
		return 0, nil
	}
	return 0, fault.New(fault.Invalid, "tar entry %q: a device, pipe or socket (type %q)", h.Name, h.Typeflag).
		WithHint("only regular files, directories and links are copied")
}

// mkdir makes a directory; one that is there stays as it is.
func (r Root) mkdir(ctx context.Context, dir string, req control.FileRequest) error {
	if req.Path == path.Clean(dir) {
		return nil // "./", the directory that everything is unpacked into
	}
	req.Op = control.FileMkdir
	_, _, err := r(ctx, req)
	if !fault.Is(err, fault.Exists) {
		return err
	}
	e, serr := r.Stat(ctx, req.Path, false)
	if serr != nil || !isDir(e.Mode) {
		return err
	}
	return nil
}

// symlink makes a symbolic link; an equal one that is there stays.
func (r Root) symlink(ctx context.Context, req control.FileRequest, target string) error {
	req.Op, req.Target = control.FileSymlink, target
	_, _, err := r(ctx, req)
	if !fault.Is(err, fault.Exists) {
		return err
	}
	reply, _, rerr := r(ctx, control.FileRequest{Op: control.FileReadlink, Path: req.Path})
	if rerr != nil || reply.Entry.Target != target {
		return err
	}
	return nil
}
