package upper

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// procPath leads to an open file, also to one that was opened with O_PATH, on
// which the calls for attributes do not work otherwise.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// entryPath leads to an entry of an open directory without following it, if it
// is the last component of what a call that does not follow takes.
func entryPath(dir int, name string) string { return procPath(dir) + "/" + name }

// readXattrs returns the attributes of the file at a path.
func readXattrs(path string) (map[string][]byte, error) {
	var small [512]byte
	list, err := sized(small[:], func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	if errors.Is(err, unix.EOPNOTSUPP) || len(list) == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list attributes: %w", err)
	}
	out := map[string][]byte{}
	sum := 0
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		v, err := sized(small[:], func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODATA) {
			continue // listed by a security module that keeps it elsewhere
		}
		if err != nil {
			return nil, fmt.Errorf("read attribute %s: %w", name, err)
		}
		if sum += len(name) + len(v); sum > maxXattrs {
			return nil, fault.New(fault.Uncapturable, "more than %d bytes of attributes", maxXattrs)
		}
		out[name] = append([]byte{}, v...)
	}
	return out, nil
}

// sized calls f with a small buffer, and with the largest that the kernel fills
// (XATTR_SIZE_MAX, XATTR_LIST_MAX) if need be.
func sized(small []byte, f func([]byte) (int, error)) ([]byte, error) {
	n, err := f(small)
	if errors.Is(err, unix.ERANGE) {
		small = make([]byte, 64<<10)
		n, err = f(small)
	}
	if err != nil {
		return nil, err
	}
	return small[:n], nil
}
