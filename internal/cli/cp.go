package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/tarball"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) cpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SRC SANDBOX:DST | SANDBOX:SRC DST",
		Short: "Copy files into and out of a sandbox",
		Long: `Copy a file or directory into or out of a sandbox. Modes, numeric owners and times are
kept (owners out of a sandbox only by root; setuid bits never come out). An existing
directory as the destination takes the source in under its own name; "SRC/." copies a
directory's content. "-" is this command's input or output and stands for one file's
content; so does a FIFO. A file has its name when it is whole: who is interrupted leaves
no half one.`,
		Example: `  sandtree cp ./project try:/srv
  sandtree cp try:/srv/project/report.txt .
  tar -c . | sandtree cp - try:/tmp/all.tar
  sandtree cp try:/var/log/app.log - | tail`,
		Args: exactly(2),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			from, to := parseEnd(args[0]), parseEnd(args[1])
			var (
				v   any
				n   client.CopyResult
				err error
			)
			switch {
			case from.sandbox == "" && to.sandbox != "":
				n, err = inv.copyIn(ctx, c.SandboxHandle(to.sandbox), from.path, to.path)
				v = copied{to.sandbox, n}
			case from.sandbox != "" && to.sandbox == "":
				n, err = inv.copyOut(ctx, c.SandboxHandle(from.sandbox), from.path, to.path)
				v = copied{from.sandbox, n}
			case from.sandbox == "":
				return fault.New(fault.Invalid, "neither %q nor %q is in a sandbox", args[0], args[1]).WithHint("write SANDBOX:PATH for one of them")
			default:
				return fault.New(fault.Invalid, "both ends are in sandboxes").WithHint("copy through: sandtree cp %s - | sandtree cp - %s", args[0], args[1])
			}
			if err != nil || to.path == "-" {
				return err
			}
			return inv.show(v, func(io.Writer) {})
		}),
	}
}

// copied is what --json prints of a copy.
type copied struct {
	ID string `json:"id"` // the sandbox, as it was named
	client.CopyResult
}

// end is one end of a copy.
type end struct{ sandbox, path string }

// parseEnd reads SANDBOX:PATH or a local path. What begins like a path ("./a:b")
// is one.
func parseEnd(s string) end {
	sandbox, p, inside := strings.Cut(s, ":")
	if !inside || sandbox == "" || strings.HasPrefix(s, ".") || strings.Contains(sandbox, "/") {
		return end{path: s}
	}
	if p == "" {
		p = "/"
	}
	return end{sandbox, p}
}

// copyIn copies a local file, directory or stream to a path of a sandbox.
func (inv *invocation) copyIn(ctx context.Context, sb *client.Sandbox, src, dst string) (client.CopyResult, error) {
	if src == "-" {
		return inv.writeIn(ctx, sb, dst, "stdin", 0, inv.in)
	}
	info, err := os.Stat(src)
	if err != nil {
		return client.CopyResult{}, localError(err)
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		f, err := os.Open(src)
		if err != nil {
			return client.CopyResult{}, localError(err)
		}
		defer func() { _ = f.Close() }()
		return inv.writeIn(ctx, sb, dst, filepath.Base(src), 0, f)
	}
	dir, name, err := placeIn(ctx, sb, src, dst, info.IsDir())
	if err != nil {
		return client.CopyResult{}, err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(tarball.Pack(w, src, name)) }()
	defer func() { _ = r.Close() }()
	return sb.CopyTo(ctx, dir, "", r)
}

// writeIn writes a stream to a file of a sandbox.
func (inv *invocation) writeIn(ctx context.Context, sb *client.Sandbox, dst, base string, mode uint32, r io.Reader) (client.CopyResult, error) {
	if isDir, err := directoryInside(ctx, sb, dst); err != nil {
		return client.CopyResult{}, err
	} else if isDir {
		dst = path.Join(dst, base)
	}
	n, err := sb.WriteFile(ctx, client.WriteConfig{Path: dst, Mode: mode}, r)
	return client.CopyResult{Files: 1, Bytes: n}, err
}

// placeIn says in which existing directory of the sandbox the copy of src
// goes, and under which name.
func placeIn(ctx context.Context, sb *client.Sandbox, src, dst string, srcIsDir bool) (dir, name string, err error) {
	isDir, err := directoryInside(ctx, sb, dst)
	if err != nil {
		return "", "", err
	}
	content := srcIsDir && (strings.HasSuffix(src, "/.") || src == ".")
	switch {
	case isDir && content:
		return dst, ".", nil
	case isDir:
		abs, err := filepath.Abs(src)
		if err != nil {
			return "", "", localError(err)
		}
		return dst, filepath.Base(abs), nil
	case strings.HasSuffix(dst, "/") && !srcIsDir:
		return "", "", fault.New(fault.NotFound, "%s: no such directory in sandbox %s", dst, sb.ID)
	}
	dst = path.Clean("/" + dst)
	return path.Dir(dst), path.Base(dst), nil
}

// directoryInside reports whether a path of a sandbox is a directory. A path
// that does not exist is none.
func directoryInside(ctx context.Context, sb *client.Sandbox, p string) (bool, error) {
	info, err := sb.Stat(ctx, p, false)
	if err != nil {
		if client.KindOf(err) == client.NotFound && !noSandbox(ctx, sb) {
			return false, nil
		}
		return false, err
	}
	return info.Mode&0o170000 == 0o040000, nil
}

// noSandbox tells a missing sandbox from a missing file.
func noSandbox(ctx context.Context, sb *client.Sandbox) bool {
	_, err := sb.Stat(ctx, "/", false)
	return err != nil
}

// copyOut copies a file or directory of a sandbox to a local path or stream.
func (inv *invocation) copyOut(ctx context.Context, sb *client.Sandbox, src, dst string) (client.CopyResult, error) {
	if dst == "-" {
		return client.CopyResult{}, sb.ReadFile(ctx, src, inv.out)
	}
	info, err := os.Stat(dst)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		f, err := os.OpenFile(dst, os.O_WRONLY, 0)
		if err != nil {
			return client.CopyResult{}, localError(err)
		}
		defer func() { _ = f.Close() }()
		return client.CopyResult{Files: 1}, sb.ReadFile(ctx, src, f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return client.CopyResult{}, localError(err)
	}
	dir, name := filepath.Dir(filepath.Clean(dst)), filepath.Base(filepath.Clean(dst))
	content := strings.HasSuffix(src, "/.")
	switch {
	case err == nil && info.IsDir() && content:
		dir, name = dst, "."
	case err == nil && info.IsDir():
		dir, name = dst, path.Base(path.Clean("/"+src))
		if name == "/" {
			name = sb.ID
		}
	case err != nil && strings.HasSuffix(dst, "/") && !content:
		return client.CopyResult{}, fault.New(fault.NotFound, "%s: no such directory", dst)
	}
	return unpackFrom(ctx, sb, path.Clean("/"+src), dir, name)
}

func unpackFrom(ctx context.Context, sb *client.Sandbox, src, dir, name string) (client.CopyResult, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(sb.CopyFrom(ctx, src, true, w)) }()
	defer func() { _ = r.Close() }()
	// Owners are kept where this process may give files away.
	n, err := tarball.Unpack(dir, name, os.Geteuid() == 0, r)
	return client.CopyResult(n), localError(err)
}

// localError classifies errors of this machine's files, whose text names the file.
func localError(err error) error {
	var known *fault.Error
	var remote *client.Error
	kind := fault.Internal
	switch {
	case err == nil, errors.As(err, &known), errors.As(err, &remote),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, fs.ErrNotExist):
		kind = fault.NotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		kind = fault.Permission
	case errors.Is(err, fs.ErrExist):
		kind = fault.Exists
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		kind = fault.Exhausted
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EINVAL):
		kind = fault.Invalid
	}
	return fault.New(kind, "%w", err)
}
