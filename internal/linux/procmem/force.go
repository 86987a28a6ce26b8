package procmem

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Force is [Write] for private pages that the process itself may not write
// (proc_pid_mem(5)); needs what ptrace needs.
func Force(pid int, addr uint64, b []byte) error {
	path := fmt.Sprintf("/proc/%d/mem", pid)
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	n, err := unix.Pwrite(fd, b, int64(addr)) //nolint:gosec // addresses of programs are below that
	_ = unix.Close(fd)
	if err != nil {
		return fmt.Errorf("write %d bytes at %#x of process %d: %w", len(b), addr, pid, err)
	}
	if n != len(b) {
		return fmt.Errorf("write %d bytes at %#x of process %d: only %d", len(b), addr, pid, n)
	}
	return nil
}
