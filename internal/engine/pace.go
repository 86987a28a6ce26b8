package engine

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sched"
)

// pace is with what priority a body is made: nil if somebody waits for it. Else
// nobody does yet, and it is made at the lowest priority until somebody does.
type pace struct {
	mu    sync.Mutex
	tid   int // of the thread that makes it; 0: none yet, or not any more
	hurry bool
	calm  func() // takes back the priority of what is waited for; nil: it has none
}

// lowest is the nice value of work in the background.
const lowest = 19

// run runs f on a locked OS thread.
func (p *pace) run(f func() error) error {
	if p == nil {
		return sched.Urgently(f)
	}
	p.mu.Lock()
	p.tid = unix.Gettid()
	if p.hurry {
		p.calm = sched.Hasten(p.tid)
	} else {
		_ = unix.Setpriority(unix.PRIO_PROCESS, p.tid, lowest) // only a matter of speed, here and below
	}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.calm != nil {
			p.calm()
			p.calm = nil
		}
		if p.tid != 0 {
			_ = unix.Setpriority(unix.PRIO_PROCESS, p.tid, 0)
			p.tid = 0
		}
	}()
	return f()
}

// waited says that somebody waits now: it goes on as if it had been begun for him.
func (p *pace) waited() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hurry = true
	if p.tid != 0 && p.calm == nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, p.tid, 0)
		p.calm = sched.Hasten(p.tid)
	}
}
