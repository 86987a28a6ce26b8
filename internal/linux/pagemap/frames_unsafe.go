package pagemap

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	framePresent = 1 << 63
	frameSwapped = 1 << 62
	frameNumber  = 1<<55 - 1

	// A swap entry has its type in its lowest bits. The highest one, which no
	// swap file has, is that of marks, whose kinds are behind it (SWP_PTE_MARKER
	// and PTE_MARKER_UFFD_WP in linux/swapops.h).
	swapTypes     = 5
	protectedMark = 1<<swapTypes | (1<<swapTypes - 1)
)

// Mark reports whether an entry of /proc/PID/pagemap stands for no page but for a
// mark that the kernel has left in its place: a page that was protected is gone.
// The reader must have the capability SYS_ADMIN.
func Mark(entry uint64) bool {
	return entry&framePresent == 0 && entry&frameSwapped != 0 && entry&frameNumber == protectedMark
}

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
