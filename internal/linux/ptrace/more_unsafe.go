package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const requestSeccompFilter = 0x420c

// SeccompFilter returns the filter program with the given index, 0 being the
// one installed first (get_nth_filter in kernel/seccomp.c; ptrace(2) says the
// contrary), as struct sock_filter of 8 bytes each. ENOENT means that
// there are fewer (Linux 4.4; needs CAP_SYS_ADMIN and a tracer without
// filters).
func SeccompFilter(tid, index int) ([]byte, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_PTRACE, requestSeccompFilter, uintptr(tid), uintptr(index), 0, 0, 0)
	if e != 0 {
		return nil, e
	}
	b := make([]byte, 8*n)
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, requestSeccompFilter, uintptr(tid), uintptr(index), uintptr(unsafe.Pointer(&b[0])), 0, 0); e != 0 {
		return nil, e
	}
	return b, nil
}

// HasSeccompFilter reports whether the filter with the given index exists. It
// does not allocate.
func HasSeccompFilter(tid, index int) bool {
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, requestSeccompFilter, uintptr(tid), uintptr(index), 0, 0, 0)
	return e == 0
}

// SyscallDispatch is how a thread has its system calls turned into signals, struct
// ptrace_sud_config (Documentation/admin-guide/syscall-user-dispatch.rst). Mode 0 is
// not at all.
type SyscallDispatch struct {
	Mode, Selector, Offset, Length uint64
}

const (
	requestSetDispatch = 0x4210 // PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG (Linux 6.4)
	requestGetDispatch = 0x4211
)

// GetSyscallDispatch reads it. Kernels without it have EIO.
func GetSyscallDispatch(tid int) (d SyscallDispatch, err error) {
	err = call(requestGetDispatch, tid, unsafe.Sizeof(d), unsafe.Pointer(&d))
	return d, err
}

// SetSyscallDispatch sets it.
func SetSyscallDispatch(tid int, d SyscallDispatch) error {
	return call(requestSetDispatch, tid, unsafe.Sizeof(d), unsafe.Pointer(&d))
}

// PendingSignal returns the siginfo_t of the signal that a thread in a
// signal-delivery stop is about to get.
func PendingSignal(tid int) (si [SiginfoSize]byte, err error) {
	err = call(unix.PTRACE_GETSIGINFO, tid, 0, unsafe.Pointer(&si))
	return si, err
}

// SetPendingSignal replaces the siginfo_t of the signal that a thread in a
// signal-delivery stop is about to get.
func SetPendingSignal(tid int, si *[SiginfoSize]byte) error {
	return call(unix.PTRACE_SETSIGINFO, tid, 0, unsafe.Pointer(si))
}

// RobustList returns a thread's list of robust futexes: head and length.
func RobustList(tid int) (head, length uint64, err error) {
	if _, _, e := unix.RawSyscall(unix.SYS_GET_ROBUST_LIST, uintptr(tid), uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&length))); e != 0 {
		return 0, 0, e
	}
	return head, length, nil
}
