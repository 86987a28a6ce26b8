package process

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/process/image"
)

// readSched reads the scheduling of a thread that was not boosted.
func readSched(tid int, m *image.Thread) error {
	a, e := sched.Get(tid)
	if e != 0 {
		return e
	}
	m.Sched.Policy, m.Sched.Nice, m.Sched.Priority = int(a.Policy), int(a.Nice), int(a.Priority)
	return nil
}

const ioprioProcess = 1 // IOPRIO_WHO_PROCESS, which is a thread

// ioPriority is a thread's priority for I/O, with its class (ioprio_get(2)).
func ioPriority(tid int) (int, error) {
	v, _, e := unix.RawSyscall(unix.SYS_IOPRIO_GET, ioprioProcess, uintptr(tid), 0)
	if e != 0 {
		return 0, e
	}
	return int(v), nil
}

// setIOPriority sets it; threads have none of their own at first.
func setIOPriority(tid, v int) error {
	const classShift = 13
	if v>>classShift == 0 {
		return nil
	}
	if _, _, e := unix.RawSyscall(unix.SYS_IOPRIO_SET, ioprioProcess, uintptr(tid), uintptr(v)); e != 0 {
		return e
	}
	return nil
}
