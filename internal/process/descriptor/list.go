package descriptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// List appends the numbers of the open descriptors of a process to buf, in
// ascending order.
func List(hostPID int, buf []int) ([]int, error) {
	name := "/proc/" + strconv.Itoa(hostPID) + "/fd"
	dir, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return buf, fmt.Errorf("list descriptors: open %s: %w", name, err)
	}
	defer unix.Close(dir)
	from := len(buf)
	err = entries(dir, func(_ uint64, name []byte) bool {
		if n, err := strconv.Atoi(string(name)); err == nil {
			buf = append(buf, n)
		}
		return true
	})
	if err != nil {
		return buf, fmt.Errorf("list descriptors: read %s: %w", name, err)
	}
	slices.Sort(buf[from:])
	return buf, nil
}

// entries calls f with the inode number and name of the entries of a
// directory, until it returns false (getdents64(2)).
func entries(dir int, f func(ino uint64, name []byte) bool) error {
	var b [8192]byte
	for {
		n, err := unix.Getdents(dir, b[:])
		if err != nil || n <= 0 {
			return err
		}
		for p := b[:n]; len(p) >= 19; {
			size := int(binary.LittleEndian.Uint16(p[16:]))
			if size < 19 || size > len(p) {
				break
			}
			name := p[19:size]
			if i := bytes.IndexByte(name, 0); i >= 0 {
				name = name[:i]
			}
			if !f(binary.LittleEndian.Uint64(p), name) {
				return nil
			}
			p = p[size:]
		}
	}
}
