package process

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// alarm interrupts the blocking system call of the thread that made it, by a
// signal that does nothing else. A thread that does not stop when it is told to
// would be waited for for ever: the parent of a vfork(2), until its child
// executes a program.
type alarm struct{ id int32 }

const (
	threadID = 4 // SIGEV_THREAD_ID
	// alarmSignal is a real-time signal that nothing else uses; the Go runtime
	// ignores it.
	alarmSignal = 62
)

// interrupting has the signal make calls fail with EINTR. The runtime's own
// handlers all restart them.
var interrupting = sync.OnceValue(func() error {
	const restart = 0x10000000 // SA_RESTART
	var a struct{ handler, flags, restorer, mask uint64 }
	if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, alarmSignal, 0, uintptr(unsafe.Pointer(&a)), 8, 0, 0); e != 0 {
		return fmt.Errorf("rt_sigaction: %w", e)
	}
	a.flags &^= restart
	if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, alarmSignal, uintptr(unsafe.Pointer(&a)), 0, 8, 0, 0); e != 0 {
		return fmt.Errorf("rt_sigaction: %w", e)
	}
	return nil
})

func newAlarm() (*alarm, error) {
	if err := interrupting(); err != nil {
		return nil, err
	}
	ev := struct {
		value  uint64
		signo  int32
		notify int32
		tid    int32
		_      [44]byte
	}{signo: alarmSignal, notify: threadID, tid: int32(unix.Gettid())}
	a := &alarm{}
	_, _, e := unix.RawSyscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ev)), uintptr(unsafe.Pointer(&a.id)))
	if e != 0 {
		return nil, fmt.Errorf("timer_create: %w", e)
	}
	return a, nil
}

// set arms the alarm, and again after each interval; 0 disarms it.
func (a *alarm) set(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	v := unix.ItimerSpec{Interval: ts, Value: ts}
	_, _, _ = unix.RawSyscall6(unix.SYS_TIMER_SETTIME, uintptr(a.id), 0, uintptr(unsafe.Pointer(&v)), 0, 0, 0)
}

func (a *alarm) close() {
	_, _, _ = unix.RawSyscall(unix.SYS_TIMER_DELETE, uintptr(a.id), 0, 0)
}
