package process

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sched"
)

// boost makes a thread a real-time one and takes that back. Where the kernel
// refuses, nothing happens: the stop only takes longer. What the thread clones
// meanwhile is an ordinary one, or it would be real-time for good.
type boost struct {
	was    sched.Attr
	raised bool
	// slack is the thread's timer slack in nanoseconds, or -1: real-time
	// threads have none, and get their inherited one back, not the one they set
	// (Linux 6.13).
	slack int
}

// raise remembers the thread's scheduling and raises it.
func (b *boost) raise(tid int) {
	a, e := sched.Get(tid)
	if e != 0 {
		return
	}
	b.was = a
	if a.Policy == sched.Other || a.Policy == unix.SCHED_BATCH || a.Policy == unix.SCHED_IDLE {
		b.slack = timerSlack(tid)
		b.raised = sched.Realtime(tid, true) == 0
	}
}

// lower gives the thread its own scheduling back. Inherited is its inherited
// timer slack, which is found out the first time.
func (b *boost) lower(tid int, inherited *int) {
	if !b.raised {
		return
	}
	_ = sched.Set(tid, b.was)
	b.raised = false
	if *inherited == 0 {
		*inherited = timerSlack(tid)
	}
	if b.slack != *inherited && b.slack >= 0 {
		setTimerSlack(tid, b.slack)
	}
}

// timerSlack reads a thread's timer slack (proc_pid_timerslack_ns(5)).
func timerSlack(tid int) int {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/timerslack_ns", tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(fd)
	var buf [32]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil || n < 1 {
		return -1
	}
	v, err := number(buf[:n-1])
	if err != nil {
		return -1
	}
	return v
}

func setTimerSlack(tid, v int) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/timerslack_ns", tid), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_, _ = unix.Write(fd, fmt.Append(nil, v))
}
