package tarball

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/unnamed"
)

// Count says what was unpacked.
type Count struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Unpack writes the files of a tar below dir and calls the first element of
// their names name. Nothing is written outside dir, whatever the tar says:
// every access goes through an [os.Root]. Modes and times are kept, and
// owners where owners is set; setuid and setgid bits are not, for a program
// from inside must not gain privilege here. Device nodes and FIFOs are
// refused.
func Unpack(dir, name string, owners bool, r io.Reader) (Count, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Count{}, err
	}
	defer func() { _ = root.Close() }()
	u := unpacker{root: root, owners: owners}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.count, u.finish()
		}
		if err != nil {
			return u.count, unreadable(err)
		}
		if err := u.add(h, rename(h.Name, name), t); err != nil {
			return u.count, err
		}
	}
}

// unreadable gives what stops the reading of a tar its kind. Who sends the tar
// has said more of his own errors.
func unreadable(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fault.New(fault.Invalid, "unpack: %w", err)
	}
	return err
}

type unpacker struct {
	root   *os.Root
	owners bool
	count  Count
	dirs   []dirMeta
}

// dirMeta is what a directory gets when its content is complete: a mode may
// forbid writing into it, and writing changes its time.
type dirMeta struct {
	name string
	mode fs.FileMode
	time time.Time
}

// rename replaces the first element of a name.
func rename(name, first string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	_, rest, _ := strings.Cut(name, "/")
	return path.Join(first, rest)
}

func (u *unpacker) add(h *tar.Header, name string, content io.Reader) error {
	mode := fs.FileMode(h.Mode & 0o777) //nolint:gosec // nine bits
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.root.MkdirAll(name, 0o700)
		u.dirs = append(u.dirs, dirMeta{name, mode, h.ModTime})
		if err == nil && u.owners {
			err = u.root.Lchown(name, h.Uid, h.Gid)
		}
		return u.wrap(name, err)
	case tar.TypeReg:
		err = u.file(h, name, mode, content)
	case tar.TypeSymlink:
		_ = u.root.Remove(name) // a link is replaced, never followed
		err = u.root.Symlink(h.Linkname, name)
		if err == nil && u.owners {
			err = u.root.Lchown(name, h.Uid, h.Gid)
		}
	case tar.TypeLink:
		_ = u.root.Remove(name)
		top, _, _ := strings.Cut(name, "/")
		err = u.root.Link(rename(h.Linkname, top), name)
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fault.New(fault.Invalid, "unpack %s: a file of kind %q is not copied", h.Name, h.Typeflag)
	}
	if err == nil {
		u.count.Files++
	}
	return u.wrap(name, err)
}

// file makes a regular file. Its name is not written through, since that may be
// a link, or in use, and gets the file when that is whole.
func (u *unpacker) file(h *tar.Header, name string, mode fs.FileMode, content io.Reader) error {
	dir, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	f, err := unnamed.Create(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	n, err := io.Copy(f, content)
	u.count.Bytes += n
	if err == nil && u.owners {
		err = f.Chown(h.Uid, h.Gid)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Place(path.Base(name))
	}
	if err == nil {
		err = u.root.Chtimes(name, h.ModTime, h.ModTime)
	}
	return err
}

// finish gives directories their modes and times, the deepest first.
func (u *unpacker) finish() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		if err := u.root.Chmod(d.name, d.mode); err != nil {
			return u.wrap(d.name, err)
		}
		if err := u.root.Chtimes(d.name, d.time, d.time); err != nil {
			return u.wrap(d.name, err)
		}
	}
	return nil
}

func (u *unpacker) wrap(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("unpack %s: %w", name, err)
}
