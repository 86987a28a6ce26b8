package process

import (
	"time"

	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/process/image"
)

// initialSlack is the timer slack in nanoseconds that processes have as long as nobody sets
// another one (PR_SET_TIMERSLACK(2const)).
const initialSlack = 50_000

// raise gives the threads of a process real-time priority while they run for
// us: on a busy processor each of some forty turns would wait for others'
// slices. In a huge tree, that takes long, those that come late do without.
// What they clone meanwhile would inherit 0 for its default timer slack
// (real-time threads have none since Linux 6.13), so they are lowered before.
// Where the kernel refuses, the turns only take longer.
func (r *restore) raise(n *newProcess) {
	if !r.target.Urgent || n.raised || time.Since(r.begun) > sched.UrgentTime {
		return
	}
	for _, t := range n.threads {
		if sched.Realtime(t.TID, true) != 0 {
			return
		}
		n.raised = true
	}
}

// lower takes that back.
func (r *restore) lower(n *newProcess) {
	if !n.raised {
		return
	}
	n.raised = false
	for _, t := range n.threads {
		_ = sched.Set(t.TID, sched.Attr{Policy: sched.Other})
	}
}

// raiseAll raises all that are there but those that are to be zombies, which nobody
// lowers again.
func (r *restore) raiseAll() error {
	return r.each(func(n *newProcess) error {
		r.raise(n)
		return nil
	})
}

// setSlack gives a thread that is no real-time one its timer slack. All have
// the initial one up to then.
func setSlack(tid int, m *image.Sched) {
	if m.TimerSlack != initialSlack {
		setTimerSlack(tid, int(m.TimerSlack))
	}
}
