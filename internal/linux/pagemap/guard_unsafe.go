package pagemap

import (
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReportsGuards tells whether the kernel knows the category [Guard] (Linux 6.16).
var ReportsGuards = sync.OnceValue(func() bool {
	fd, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var here byte
	size := uint64(os.Getpagesize())
	at := uint64(uintptr(unsafe.Pointer(&here))) &^ (size - 1)
	var buf [1]Region
	return Scan(fd, at, at+size, Query{Mask: Guard, Return: Guard}, buf[:], func(Region) {}) == 0
})
