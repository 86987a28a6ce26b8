package seccomp

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Install makes a program the filter of the calling thread, which the caller has
// locked to its goroutine, and of what it starts, for good (seccomp(2)). It needs
// no_new_privs or CAP_SYS_ADMIN.
func Install(program []unix.SockFilter) error {
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // at most BPF_MAXINSNS
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f)), 0, 0); err != nil {
		return fmt.Errorf("install a seccomp filter: %w", err)
	}
	return nil
}
