package sched

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ioprio_set(2).
const (
	ioWhoProcess = 1       // one thread, in fact
	ioNone       = 0       // as the nice value says
	ioIdle       = 3 << 13 // IOPRIO_CLASS_IDLE: the disk when nobody else wants it
)

// Background gives all threads of this process a nice value and the idle class
// of the disk. Threads that they start inherit both.
func Background(nice int) error { return all(nice, ioIdle) }

// Foreground takes that back. It needs CAP_SYS_NICE.
func Foreground() error { return all(0, ioNone) }

// all sets nice value and class of the disk of all threads.
func all(nice int, class uintptr) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, tid, nice); err != nil && err != unix.ESRCH {
			return fmt.Errorf("setpriority: %w", err)
		}
		if _, _, e := unix.RawSyscall(unix.SYS_IOPRIO_SET, ioWhoProcess, uintptr(tid), class); e != 0 && e != unix.ESRCH {
			return fmt.Errorf("ioprio_set: %w", e)
		}
	}
	return nil
}
