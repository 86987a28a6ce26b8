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
	defer Hasten(unix.Gettid())()
	return f()
}

// Hasten gives a thread, which must not end before, real-time priority until the function that it
// returns is called, or until [UrgentTime] has gone by. Where the kernel refuses it (EPERM), or the
// thread has such a priority, nothing happens.
func Hasten(tid int) (back func()) {
	was, e := Get(tid)
	if e != 0 || was.Policy != Other || Realtime(tid, true) != 0 {
		return func() {}
	}
	// What takes long after all must not keep everything else waiting.
	end := time.AfterFunc(UrgentTime, func() { Set(tid, was) })
	return func() {
		end.Stop()
		Set(tid, was)
	}
}

// UrgentTime bounds the time with real-time priority: ten times what a
// checkpoint takes.
const UrgentTime = 50 * time.Millisecond
