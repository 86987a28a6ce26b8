package process

import (
	"time"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Init runs batches in an incarnation's PID 1.
type Init interface {
	Do(b *tracee.Batch, fds ...int) error
	// DoReceive is Do for a batch that sends n descriptors back.
	DoReceive(b *tracee.Batch, n int, fds ...int) ([]int, error)
}

// Target is an incarnation that a tree is restored in: booted, and without
// processes so far. Descriptors stay the caller's.
type Target struct {
	Init Init
	// Enter puts a process into the cgroups of version 1, and may be nil.
	Enter func(pid int) error
	// Root is the root directory.
	Root  int
	Walls *confine.Walls
	// Session gives the inner ends of the sessions' pipes.
	Session func(id string, stream int) (fd int, ok bool)
	// Master receives this process's descriptor of the master of a session's
	// terminal, which is its own from then on.
	Master func(session string, fd int) error
	// Urgent gives the processes real-time priority while they are being made.
	Urgent bool
	// Live is for following the restored processes.
	Live Config
}

// RestoreStages is how long the parts of a restore took.
type RestoreStages []Stage

func (s *RestoreStages) add(name string, since *time.Time) {
	now := time.Now()
	*s = append(*s, Stage{name, now.Sub(*since)})
	*since = now
}

type opened = descriptor.Opened
