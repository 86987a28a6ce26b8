// Package uffd registers memory of a process for write tracking with
// userfaultfd(2): in asynchronous write-protect mode no fault is ever
// delivered, the kernel lifts the protection by itself, and PAGEMAP_SCAN tells
// which pages it was lifted from.
package uffd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags for the userfaultfd system call: only faults of user mode may be
// handled, which needs no privilege (Linux 5.11). Asynchronous tracking sees
// writes by the kernel all the same.
const Flags = 1 | unix.O_CLOEXEC | unix.O_NONBLOCK

const (
	ioctlAPI        = 0xc018aa3f // UFFDIO_API
	ioctlRegister   = 0xc020aa00 // UFFDIO_REGISTER
	ioctlUnregister = 0x8010aa01 // UFFDIO_UNREGISTER
	ioctlProtect    = 0xc018aa06 // UFFDIO_WRITEPROTECT
	apiVersion      = 0xaa
	registerWP      = 1 << 1

	featureWPUnpopulated = 1 << 13 // Linux 6.4
	featureWPAsync       = 1 << 15 // Linux 6.7
)

func ioctl(fd int, nr uintptr, p unsafe.Pointer) unix.Errno {
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), nr, uintptr(p))
	return e
}

// Enable switches asynchronous write tracking on, for which a new userfaultfd
// must be told once. EINVAL means that the kernel is older than 6.7.
func Enable(fd int) error {
	api := [3]uint64{apiVersion, featureWPUnpopulated | featureWPAsync, 0}
	if e := ioctl(fd, ioctlAPI, unsafe.Pointer(&api)); e != 0 {
		return e
	}
	return nil
}

// Register starts the tracking of a range that lies within mappings of the
// process that made the descriptor. It does not protect any page yet: the
// first scan that is told to does. It does not allocate.
func Register(fd int, start, end uint64) unix.Errno {
	r := [4]uint64{start, end - start, registerWP, 0}
	return ioctl(fd, ioctlRegister, unsafe.Pointer(&r))
}

// Unregister ends the tracking of a range, all of which is registered. Protection
// is lifted, and the marks that it has left where no page is are gone. EINVAL:
// not all is registered.
func Unregister(fd int, start, end uint64) unix.Errno {
	r := [2]uint64{start, end - start}
	return ioctl(fd, ioctlUnregister, unsafe.Pointer(&r))
}

// Unprotect lifts the protection of a range, all of which is registered, and takes
// away the marks that it has left where pages are gone.
func Unprotect(fd int, start, end uint64) unix.Errno {
	r := [3]uint64{start, end - start, 0}
	return ioctl(fd, ioctlProtect, unsafe.Pointer(&r))
}
