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

// getxattr returns an attribute's value, or nothing where there is none.
func getxattr(fd int, name string) ([]byte, error) {
	buf := make([]byte, 256)
	for {
		n, err := unix.Getxattr(procPath(fd), name, buf)
		switch {
		case err == nil:
			return buf[:n], nil
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
			return nil, nil
		case errors.Is(err, unix.ERANGE) && len(buf) < 64<<10:
			buf = make([]byte, 64<<10)
		default:
			return nil, err
		}
	}
}

// xattrs returns the attributes that a root shows, as sorted "name=value".
func xattrs(fd int) ([]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Listxattr(procPath(fd), buf)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for name := range strings.SplitSeq(strings.TrimRight(string(buf[:n]), "\x00"), "\x00") {
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
