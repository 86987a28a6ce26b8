package process

import (
	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/process/image"
)

// readSched reads the scheduling of a thread that was not boosted.
func readSched(tid int, m *image.Thread) error {
	a, e := sched.Get(tid)
	if e != 0 {
		return e
	}
	m.Sched.Policy, m.Sched.Nice, m.Sched.Priority = int(a.Policy), int(a.Nice), int(a.Priority)
	return nil
}
