package sandbox

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/linux/statdev"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Incarnation is one living body. It is safe for use by many goroutines.
type Incarnation struct {
	seed  *Seed
	group *cgroup.Group
	init  *tracee.Init
	owner uint32
	pid   int // PID 1's, on the host
	pidfd int
	walls *confine.Walls
	shows statdev.Claim // the numbers of its mounts

	mu        sync.Mutex
	processes map[int]*Process // by pid inside, those that are watched
	claims    map[int]*Process // started by a batch that has not returned yet
	over      bool             // PID 1 has ended
	closing   sync.Once
	closed    error
}

// PID is PID 1's number on the host.
func (i *Incarnation) PID() int { return i.pid }

// Owner is the user, on the host, that the incarnation's user namespace belongs to. Of
// the 65,536 incarnations of a family that were made last no other has the same.
func (i *Incarnation) Owner() uint32 { return i.owner }

// PIDFD refers to PID 1, for setns(2) and poll(2). The incarnation owns it.
func (i *Incarnation) PIDFD() int { return i.pidfd }

// Cgroup holds all processes of the incarnation, PID 1 included.
func (i *Incarnation) Cgroup() *cgroup.Group { return i.group }

// Walls are what confines its processes.
func (i *Incarnation) Walls() *confine.Walls { return i.walls }

// Done is closed when PID 1 has ended, and all else with it.
func (i *Incarnation) Done() <-chan struct{} { return i.init.Done() }

// Namespace opens one of the incarnation's namespaces. The caller closes it.
// What processes inside are in is [namespace.TimeForChildren]: PID 1 itself is
// not in the time namespace that it made.
func (i *Incarnation) Namespace(k namespace.Kind) (fd int, err error) {
	fd, err = namespace.Open(i.pid, k)
	if err != nil {
		return -1, fault.New(fault.Unavailable, "open a namespace of the incarnation: %w", err)
	}
	return fd, nil
}

// Root opens the root directory as seen inside, as a path descriptor. A path
// looked up from it without openat2(2) can leave it. The caller closes it.
func (i *Incarnation) Root() (fd int, err error) {
	fd, err = unix.Open(fmt.Sprintf("/proc/%d/root", i.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fault.New(fault.Unavailable, "open the incarnation's root: %w", err)
	}
	return fd, nil
}

// SetClocks sets how far the clocks inside are ahead of the host's: those of
// CLOCK_MONOTONIC and CLOCK_BOOTTIME. Once a first process has run inside, the
// kernel refuses, and the error is of kind Conflict.
func (i *Incarnation) SetClocks(monotonic, boottime time.Duration) error {
	err := namespace.SetClocks(i.pid, monotonic, boottime)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EACCES):
		return fault.New(fault.Conflict, "set the clocks: a process has run in the incarnation already: %w", err)
	case errors.Is(err, unix.ERANGE):
		return fault.New(fault.Invalid, "set the clocks %v and %v ahead: out of range: %w", monotonic, boottime, err)
	}
	return fault.New(fault.Internal, "set the clocks: %w", err)
}

// SetHostname changes the hostname; files keep the old one.
func (i *Incarnation) SetHostname(name string) error {
	if err := checkHostname(name); err != nil {
		return err
	}
	b := tracee.NewBatch()
	queueHostname(b, name)
	if err := i.Do(b); err != nil {
		return doError("set the hostname", err)
	}
	return nil
}

// patience is how long PID 1 may take for a batch. Only what the sandbox does
// to it on purpose takes longer than milliseconds.
var patience = 20 * time.Second // tests shorten it

// Do runs a batch in PID 1, as [tracee.Server.Do]. It must not count on
// descriptors of an earlier batch, nor on PID 1 having none. A PID 1 that does not
// answer in time is killed, and the incarnation with it.
func (i *Incarnation) Do(b *tracee.Batch, fds ...int) error {
	_, err := i.DoReceive(b, 0, fds...)
	return err
}

// DoReceive is Do for a batch that sends n descriptors back.
func (i *Incarnation) DoReceive(b *tracee.Batch, n int, fds ...int) ([]int, error) {
	guard := time.AfterFunc(patience, i.killInit)
	defer guard.Stop()
	return i.init.DoReceive(b, n, fds...)
}

func (i *Incarnation) killInit() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.pidfd >= 0 {
		_ = unix.PidfdSendSignal(i.pidfd, unix.SIGKILL, nil, 0)
	}
}

// doError gives the failure of a batch a kind.
func doError(what string, err error) error {
	if errors.Is(err, tracee.ErrGone) {
		return fault.New(fault.Unavailable, "%s: the sandbox's processes have ended", what)
	}
	return fault.New(fault.Internal, "%s: %w", what, err)
}
