package process

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sched"
)

// boost makes a thread a real-time one and takes that back. Where the kernel
// refuses, nothing happens: the stop only takes longer.
type boost struct {
	was    sched.Attr
	raised bool
}

// raise remembers the thread's scheduling and raises it.
func (b *boost) raise(tid int) {
	a, e := sched.Get(tid)
	if e != 0 {
		return
	}
	b.was = a
	if a.Policy == sched.Other || a.Policy == unix.SCHED_BATCH || a.Policy == unix.SCHED_IDLE {
		b.raised = sched.Realtime(tid, false) == 0
	}
}

// lower gives the thread its own scheduling back.
func (b *boost) lower(tid int) {
	if b.raised {
		_ = sched.Set(tid, b.was)
		b.raised = false
	}
}
