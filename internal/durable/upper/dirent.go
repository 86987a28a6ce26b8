package upper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// dirent is a name in a directory with its file's number.
type dirent struct {
	ino  uint64
	name string
}

// readDir lists an open directory, sorted by name. The numbers come with the
// names (getdents64(2)), so that a file that did not change need not be looked
// at.
func readDir(fd int) ([]dirent, error) {
	const (
		lengthAt, nameAt = 16, 19 // in struct linux_dirent64
		bufSize          = 64 << 10
	)
	var out []dirent
	buf := make([]byte, bufSize)
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		for rest := buf[:n]; len(rest) > 0; {
			length := int(binary.NativeEndian.Uint16(rest[lengthAt:]))
			if length <= nameAt || length > len(rest) {
				return nil, fmt.Errorf("getdents64: an entry of %d bytes", length)
			}
			name, _, _ := bytes.Cut(rest[nameAt:length], []byte{0})
			if s := string(name); s != "." && s != ".." {
				out = append(out, dirent{binary.NativeEndian.Uint64(rest), s})
			}
			rest = rest[length:]
		}
	}
	slices.SortFunc(out, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	return out, nil
}
