package engine

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/linux/sched"
)

// What nobody waits for is made at the lowest priority, and with real-time priority as soon as
// somebody does; what is made for somebody has it from the beginning. The thread is afterwards
// as it was.
func TestPace(t *testing.T) {
	if e := sched.Urgently(func() unix.Errno { return policyRefused(sched.FIFO) }); e != 0 {
		featuretest.SkipIfMissing(t, feature.Missing("real-time priority", e))
	}
	for name, c := range map[string]struct {
		before bool
		want   []sched.Attr
	}{
		"waited for in its middle": {false, []sched.Attr{{Policy: sched.Other, Nice: lowest}, {Policy: sched.FIFO}, {Policy: sched.Other}}},
		"waited for before":        {true, []sched.Attr{{Policy: sched.FIFO}, {Policy: sched.FIFO}, {Policy: sched.Other}}},
	} {
		done := make(chan []sched.Attr)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var p pace
			var got []sched.Attr
			if c.before {
				p.waited()
			}
			_ = p.run(func() error {
				got = append(got, attr())
				p.waited()
				got = append(got, attr())
				return nil
			})
			done <- append(got, attr())
		}()
		for i, got := range <-done {
			if want := c.want[i]; got.Policy != want.Policy || got.Nice != want.Nice {
				t.Errorf("%s: policy %d, nice %d at point %d, want %+v", name, got.Policy, got.Nice, i, want)
			}
		}
	}
}

func attr() sched.Attr {
	a, _ := sched.Get(0)
	return a
}

// policyRefused is EPERM if the calling thread has not the policy.
func policyRefused(policy uint32) unix.Errno {
	if attr().Policy != policy {
		return unix.EPERM
	}
	return 0
}
