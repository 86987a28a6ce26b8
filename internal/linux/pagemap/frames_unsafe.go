package pagemap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	framePresent = 1 << 63
	frameNumber  = 1<<55 - 1
)

// Frame returns the number of the physical page that an entry of
// /proc/PID/pagemap stands for; 0 if no page is there, or if the reader has not
// the capability SYS_ADMIN and is told none.
func Frame(entry uint64) uint64 {
	if entry&framePresent == 0 {
		return 0
	}
	return entry & frameNumber
}

// Entries reads the entries of the pages from start on, one for each element of
// out. fd is /proc/PID/pagemap.
func Entries(fd int, start uint64, out []uint64) error {
	if len(out) == 0 {
		return nil
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&out[0])), 8*len(out))
	for at := 0; at < len(b); {
		n, err := unix.Pread(fd, b[at:], int64(start/4096*8)+int64(at))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return fmt.Errorf("read pagemap at %#x: %d of %d bytes: %w", start, at, len(b), err)
		}
		at += n
	}
	return nil
}
