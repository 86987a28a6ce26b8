package overlay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The calls on descriptors refuse one that was opened with O_PATH, as it must
// be for a symbolic link or a device; its link in /proc leads to the very file.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// maxXattr is the largest value or list that the kernel hands out
// (XATTR_SIZE_MAX and XATTR_LIST_MAX, limits.h).
const maxXattr = 64 << 10

// growing calls f with a small buffer, and with a large one if need be.
func growing(f func([]byte) (int, error)) ([]byte, error) {
	buf := make([]byte, 256)
	n, err := f(buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, maxXattr)
		n, err = f(buf)
	}
	return buf[:max(n, 0)], err
}

// getxattr returns an attribute's value, or nothing where there is none.
func getxattr(fd int, name string) ([]byte, error) {
	v, err := growing(func(b []byte) (int, error) { return unix.Getxattr(procPath(fd), name, b) })
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return v, err
}

// xattrs returns the attributes that a root shows, as sorted "name=value".
func xattrs(fd int) ([]string, error) {
	names, err := growing(func(b []byte) (int, error) { return unix.Listxattr(procPath(fd), b) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for name := range strings.SplitSeq(string(names), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		v, err := getxattr(fd, name)
		if err != nil {
			return nil, err
		}
		list = append(list, name+"="+string(v))
	}
	slices.Sort(list)
	return list, nil
}
