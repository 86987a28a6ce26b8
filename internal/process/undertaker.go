package process

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// undertakeEvery is how often the undertaker looks; nearly all stops are over before.
const undertakeEvery = 2 * time.Millisecond

// undertaker waits for traced threads that an execve has killed, while the thread that
// traces them cannot: PTRACE_SEIZE waits for an execve of its target's process
// (cred_guard_mutex), and that waits until somebody has waited for those it has killed.
// Without it each would wait for the other for good. Any thread of the tracer's process
// may wait for its tracees' ends (wait(2), __WNOTHREAD).
type undertaker struct {
	timer *time.Timer

	mu   sync.Mutex
	on   bool
	tids []int // traced
	dead []int // waited for
}

func newUndertaker() *undertaker {
	u := &undertaker{}
	u.timer = time.AfterFunc(time.Hour, u.look)
	u.timer.Stop()
	return u
}

// begin and end enclose a stop.
func (u *undertaker) begin() {
	u.mu.Lock()
	u.on, u.tids, u.dead = true, u.tids[:0], u.dead[:0]
	u.timer.Reset(undertakeEvery)
	u.mu.Unlock()
}

func (u *undertaker) end() {
	u.mu.Lock()
	u.on = false
	u.timer.Stop()
	u.mu.Unlock()
}

// traces tells of a thread that is traced from now on.
func (u *undertaker) traces(tid int) {
	u.mu.Lock()
	u.tids = append(u.tids, tid)
	u.mu.Unlock()
}

// buried reports whether a thread, for which nobody can wait any more, has ended.
func (u *undertaker) buried(tid int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Contains(u.dead, tid)
}

func (u *undertaker) look() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.on {
		return
	}
	u.tids = slices.DeleteFunc(u.tids, func(tid int) bool {
		// Stops are told whatever was asked for, and are the tracer's: so it looks first.
		const look, cldExited, cldDumped = unix.WEXITED | unix.WNOHANG | unix.WALL, 1, 3
		var si unix.Siginfo
		err := unix.Waitid(unix.P_PID, tid, &si, look|unix.WNOWAIT, nil)
		if err != nil || si.Signo == 0 || si.Code < cldExited || si.Code > cldDumped {
			return false
		}
		if unix.Waitid(unix.P_PID, tid, &si, look, nil) != nil { // the tracer was first
			return false
		}
		u.dead = append(u.dead, tid)
		return true
	})
	u.timer.Reset(undertakeEvery)
}
