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
	keepSched(&m.Sched, &a)
	return nil
}

func keepSched(to *image.Sched, a *sched.Attr) {
	to.Policy, to.Nice, to.Priority = int(a.Policy), int(a.Nice), int(a.Priority)
	to.ResetOnFork = a.Flags&sched.ResetOnFork != 0
}

// setSched gives a thread its scheduling. A machine or cgroup that has no time for
// real-time threads, where the checkpoint was made by one that had, leaves it an
// ordinary one.
func setSched(tid int, m *image.Sched) error {
	a := sched.Attr{Policy: uint32(m.Policy), Nice: int32(m.Nice), Priority: uint32(m.Priority)}
	if m.ResetOnFork {
		a.Flags = sched.ResetOnFork
	}
	if a == (sched.Attr{}) {
		return nil
	}
	if a.Policy == unix.SCHED_IDLE && a.Nice != 0 { // which keeps a nice value, and takes none
		if e := sched.Set(tid, sched.Attr{Policy: sched.Other, Nice: a.Nice}); e != 0 {
			return e
		}
	}
	e := sched.Set(tid, a)
	if e == unix.EPERM && a.Priority > 0 {
		a.Policy, a.Priority = sched.Other, 0
		e = sched.Set(tid, a)
	}
	if e != 0 {
		return e
	}
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
