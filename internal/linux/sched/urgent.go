package sched

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Urgently runs f with real-time priority on the OS thread that it is called on,
// so that other work on the machine does not make processes stand longer: a
// stop takes microseconds of work and, on a busy machine, milliseconds of waiting
// for a processor. What f clones does not inherit the priority. Where the kernel
// refuses it (EPERM), f runs all the same.
func Urgently[T any](f func() T) T {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was, e := Get(0)
	if e == 0 && was.Policy == Other && Realtime(0, true) == 0 {
		// What takes long after all must not keep everything else waiting.
		tid := unix.Gettid()
		end := time.AfterFunc(UrgentTime, func() { Set(tid, was) })
		defer Set(0, was)
		defer end.Stop()
	}
	return f()
}

// UrgentTime bounds the time with real-time priority: ten times what a
// checkpoint takes.
const UrgentTime = 50 * time.Millisecond
