package rootfstest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// shape is everything about a file that a comparison looks at, as text.
type shape string

// walk calls visit for everything in a root, in order of path.
func walk(r Root, visit func(path string, s shape)) error {
	top := r.Path("/")
	return filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil || rel == "." {
			return err
		}
		s, err := shapeOf(p, false)
		if err != nil {
			return err
		}
		visit("/"+rel, s)
		return nil
	})
}

// shapeOf describes a file, or what stands behind a symbolic link: the open
// file, for a link in /proc.
func shapeOf(p string, follow bool) (shape, error) {
	stat, list, get := unix.Lstat, unix.Llistxattr, unix.Lgetxattr
	if follow {
		stat, list, get = unix.Stat, unix.Listxattr, unix.Getxattr
	}
	var st unix.Stat_t
	if err := stat(p, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: p, Err: err}
	}
	x, err := attributes(p, list, get)
	if err != nil {
		return "", err
	}
	s := fmt.Sprintf("%o %d:%d %q", st.Mode, st.Uid, st.Gid, x)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return shape(s), nil
	}
	s += fmt.Sprintf(" %d %d %d.%d", st.Rdev, st.Size, st.Mtim.Sec, st.Mtim.Nsec)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		to, err := os.Readlink(p)
		if err != nil {
			return "", err
		}
		s += " " + to
	case unix.S_IFREG:
		b, err := os.ReadFile(p)
		if err != nil {
			return "", err
		}
		s += fmt.Sprintf(" %x", sha256.Sum256(b))
	}
	return shape(s), nil
}

// attributes lists extended attributes, without those that overlayfs keeps for
// itself and shows to nobody inside.
func attributes(p string, list func(string, []byte) (int, error), get func(string, string, []byte) (int, error)) ([]string, error) {
	buf := make([]byte, 4096)
	n, err := list(p, buf)
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: p, Err: err}
	}
	var as []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		v := make([]byte, 4096)
		m, err := get(p, name, v)
		if err != nil {
			return nil, &os.PathError{Op: "getxattr", Path: p, Err: err}
		}
		as = append(as, name+"="+string(v[:m]))
	}
	slices.Sort(as)
	return as, nil
}
