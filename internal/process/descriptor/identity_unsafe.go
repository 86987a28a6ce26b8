package descriptor

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Types of kcmp(2).
const (
	kcmpFile     = 0
	kcmpEpollTFD = 7
)

// noQuery is set once the kernel has no F_DUPFD_QUERY (before Linux 6.10).
var noQuery atomic.Bool

// sameDescription reports whether two descriptors of this process refer to one
// open file description.
func sameDescription(a, b int) (bool, error) {
	if !noQuery.Load() {
		r, err := unix.FcntlInt(uintptr(a), unix.F_DUPFD_QUERY, b)
		if err == nil {
			return r == 1, nil
		}
		if err != unix.EINVAL {
			return false, fmt.Errorf("F_DUPFD_QUERY: %w", err)
		}
		noQuery.Store(true)
	}
	r, err := kcmp(kcmpFile, uintptr(a), uintptr(b))
	return r == 0, err
}

// kcmpSlot is struct kcmp_epoll_slot.
type kcmpSlot struct{ epoll, number, nth uint32 }

// isWatched reports whether the nth entry with the given number in an epoll's
// interest list is for the description of fd. All descriptors are this
// process's (kcmp(2), KCMP_EPOLL_TFD).
func isWatched(fd, epoll, number, nth int) (bool, error) {
	s := kcmpSlot{uint32(epoll), uint32(number), uint32(nth)}
	r, err := kcmp(kcmpEpollTFD, uintptr(fd), uintptr(unsafe.Pointer(&s)))
	return r == 0, err
}

func kcmp(typ int, a, b uintptr) (int, error) {
	self := uintptr(os.Getpid())
	r, _, e := unix.Syscall6(unix.SYS_KCMP, self, self, uintptr(typ), a, b, 0)
	if e != 0 {
		return -1, fmt.Errorf("kcmp: %w", e)
	}
	return int(r), nil
}

// Types of struct f_owner_ex (fcntl(2)).
const ownerGroup = 2

// ownerOf is struct f_owner_ex.
type ownerOf struct{ kind, pid int32 }

func getOwner(fd int) (o ownerOf, err error) {
	if _, _, e := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GETOWN_EX, uintptr(unsafe.Pointer(&o))); e != 0 {
		return o, e
	}
	return o, nil
}

// openPeer opens the slave of a master without waiting (TIOCGPTPEER). The
// kernel leaves O_CLOEXEC among the flags of such a description.
func openPeer(master int) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

// tfdIocSetTicks is TFD_IOC_SET_TICKS (linux/timerfd.h, Linux 3.17).
const tfdIocSetTicks = 0x40085400

// setTicks sets how often a timerfd has fired, a number of 8 bytes above 0.
func setTicks(fd int, ticks []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), tfdIocSetTicks, uintptr(unsafe.Pointer(&ticks[0]))); e != 0 {
		return e
	}
	return nil
}
