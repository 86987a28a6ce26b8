package memory

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore says of each page whether it is in memory (mincore(2)).
func mincore(b, pages []byte) error {
	_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0])))
	if e != 0 {
		return e
	}
	return nil
}
