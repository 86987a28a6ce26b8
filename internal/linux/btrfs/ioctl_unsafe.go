package btrfs

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Request numbers of uapi/linux/btrfs.h, on the generic ioctl encoding that
// amd64 and arm64 share.
const (
	iocResize        = 0x50009403
	iocSync          = 0x00009408
	iocSnapDestroy   = 0x5000940f
	iocTreeSearchV2  = 0xc0709411
	iocSnapCreateV2  = 0x50009417
	iocSubvolCreate2 = 0x50009418
	iocFSInfo        = 0x8400941f
	iocQuotaCtl      = 0xc0109428
	iocQgroupAssign  = 0x40189429
	iocQgroupCreate  = 0x4010942a
	iocQgroupLimit   = 0x8030942b
	iocSubvolInfo    = 0x81f8943c
)

var names = map[uint]string{
	iocResize:        "BTRFS_IOC_RESIZE",
	iocSync:          "BTRFS_IOC_SYNC",
	iocSnapDestroy:   "BTRFS_IOC_SNAP_DESTROY",
	iocTreeSearchV2:  "BTRFS_IOC_TREE_SEARCH_V2",
	iocSnapCreateV2:  "BTRFS_IOC_SNAP_CREATE_V2",
	iocSubvolCreate2: "BTRFS_IOC_SUBVOL_CREATE_V2",
	iocFSInfo:        "BTRFS_IOC_FS_INFO",
	iocQuotaCtl:      "BTRFS_IOC_QUOTA_CTL",
	iocQgroupAssign:  "BTRFS_IOC_QGROUP_ASSIGN",
	iocQgroupCreate:  "BTRFS_IOC_QGROUP_CREATE",
	iocQgroupLimit:   "BTRFS_IOC_QGROUP_LIMIT",
	iocSubvolInfo:    "BTRFS_IOC_GET_SUBVOL_INFO",
}

// Error is a btrfs ioctl that failed. It unwraps to the errno.
type Error struct {
	Call string // the request's name
	What string // what it was about
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s %s: %v", e.Call, e.What, e.Err) }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Err }

// ioctl runs a request whose argument is *arg; n is what the kernel returned.
func ioctl[T any](fd int, req uint, what string, arg *T) error {
	err := call(fd, req, unsafe.Pointer(arg))
	runtime.KeepAlive(arg)
	if err != nil {
		return &Error{Call: names[req], What: what, Err: err}
	}
	return nil
}

func call(fd int, req uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg))
		if errno == 0 {
			return nil
		}
		if !errors.Is(errno, unix.EINTR) {
			return errno
		}
	}
}

// address is where a structure lies, for the one request that takes a second
// structure by reference. The caller keeps it alive and pinned.
func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }
