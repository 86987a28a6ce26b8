// Package sched reads and sets the scheduling of threads (sched_setattr(2)).
package sched

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Policies.
const (
	Other = 0
	FIFO  = 1

	// ResetOnFork is the flag of a thread whose children and threads are ordinary
	// ones (SCHED_RESET_ON_FORK in sched(7)).
	ResetOnFork = 1 << 0
)

// Attr is a thread's scheduling.
type Attr struct {
	Policy   uint32
	Flags    uint64
	Nice     int32
	Priority uint32
	Runtime  uint64
	Deadline uint64
	Period   uint64
}

// attr is struct sched_attr, in its first published size.
type attr struct {
	size, policy               uint32
	flags                      uint64
	nice                       int32
	priority                   uint32
	runtime, deadline, period_ uint64
}

// Get reads a thread's scheduling. It does not allocate.
func Get(tid int) (Attr, unix.Errno) {
	var a attr
	_, _, e := unix.RawSyscall6(unix.SYS_SCHED_GETATTR, uintptr(tid), uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a), 0, 0, 0)
	return Attr{a.policy, a.flags, a.nice, a.priority, a.runtime, a.deadline, a.period_}, e
}

// Set sets a thread's scheduling. It does not allocate.
func Set(tid int, v Attr) unix.Errno {
	a := attr{uint32(unsafe.Sizeof(attr{})), v.Policy, v.Flags, v.Nice, v.Priority, v.Runtime, v.Deadline, v.Period}
	_, _, e := unix.RawSyscall(unix.SYS_SCHED_SETATTR, uintptr(tid), uintptr(unsafe.Pointer(&a)), 0)
	return e
}

// Priorities of real-time threads, the lowest that there are.
const (
	besidePriority = 1 // what is done beside
	urgentPriority = 2 // what takes turns with it, and is waited for at every turn
)

// Realtime makes a thread a real-time one of a low priority. With reset,
// what it clones is not. EPERM means that the machine or the thread's cgroup
// does not allow it.
func Realtime(tid int, reset bool) unix.Errno { return realtime(tid, urgentPriority, reset) }

func realtime(tid, priority int, reset bool) unix.Errno {
	a := Attr{Policy: FIFO, Priority: uint32(priority)}
	if reset {
		a.Flags = ResetOnFork
	}
	return Set(tid, a)
}
