package sched_test

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sched"
)

func TestBackgroundAndForeground(t *testing.T) {
	for _, step := range []struct {
		set  func() error
		nice int
	}{{func() error { return sched.Background(7) }, 7}, {sched.Foreground, 0}} {
		if err := step.set(); err != nil {
			t.Fatal(err)
		}
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil {
				t.Fatal(err)
			}
			// The call tells 20 less the nice value (getpriority(2)).
			if p, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && 20-p != step.nice {
				t.Errorf("thread %d has nice value %d, not %d", tid, 20-p, step.nice)
			}
		}
	}
}
