// Package procmem reads and writes the memory of other processes with
// process_vm_readv(2) and process_vm_writev(2).
//
// Reading pins the pages, and pinning makes a page that is shared by fork the
// target's own: use it for pages that are the target's own anyway, and
// /proc/PID/mem for others.
package procmem

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxVectors is IOV_MAX, the most pieces that one call takes.
const MaxVectors = 1024

// Span is a piece of another process's memory.
type Span struct {
	Addr uint64
	Len  uint64
}

// Read fills b from addr in pid's memory.
func Read(pid int, addr uint64, b []byte) error {
	return one(unix.SYS_PROCESS_VM_READV, "read", pid, addr, b)
}

// Write stores b at addr in pid's memory. The pages must be writable there.
func Write(pid int, addr uint64, b []byte) error {
	return one(unix.SYS_PROCESS_VM_WRITEV, "write", pid, addr, b)
}

func one(nr uintptr, what string, pid int, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	remote := Span{addr, uint64(len(b))}
	n, _, e := unix.RawSyscall6(nr, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	runtime.KeepAlive(b)
	if e != 0 {
		return fmt.Errorf("%s %d bytes at %#x of process %d: %w", what, len(b), addr, pid, e)
	}
	if int(n) != len(b) {
		return fmt.Errorf("%s %d bytes at %#x of process %d: only %d", what, len(b), addr, pid, int(n))
	}
	return nil
}

// ReadV fills the local pieces from the remote ones, at most [MaxVectors] of
// each, and returns how many bytes it read. It does not allocate.
func ReadV(pid int, local []unix.Iovec, remote []Span) (int, unix.Errno) {
	return vector(unix.SYS_PROCESS_VM_READV, pid, local, remote)
}

// WriteV stores the local pieces at the remote ones, at most [MaxVectors] of
// each, and returns how many bytes it wrote. It does not allocate.
func WriteV(pid int, local []unix.Iovec, remote []Span) (int, unix.Errno) {
	return vector(unix.SYS_PROCESS_VM_WRITEV, pid, local, remote)
}

func vector(nr uintptr, pid int, local []unix.Iovec, remote []Span) (int, unix.Errno) {
	if len(local) == 0 {
		return 0, 0
	}
	n, _, e := unix.RawSyscall6(nr, uintptr(pid), uintptr(unsafe.Pointer(&local[0])), uintptr(len(local)),
		uintptr(unsafe.Pointer(&remote[0])), uintptr(len(remote)), 0)
	return int(n), e
}
