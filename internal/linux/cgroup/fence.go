package cgroup

import (
	"bytes"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// fence is the part of a group that works in the frozen window of a
// checkpoint: everything is open and allocated beforehand.
type fence struct {
	mu     sync.Mutex
	freeze int // cgroup.freeze
	events int // cgroup.events
	poll   []unix.PollFd
	buf    []byte
	one    []byte
	zero   []byte
}

// open opens the files of a v2 directory; on error close what was opened.
func (f *fence) open(dir int) (err error) {
	if f.freeze, err = unix.Openat(dir, "cgroup.freeze", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if f.events, err = unix.Openat(dir, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	f.poll = []unix.PollFd{{Fd: int32(f.events), Events: unix.POLLPRI}}
	f.buf = make([]byte, 4096)
	f.one, f.zero = []byte{'1'}, []byte{'0'}
	return nil
}

func (f *fence) close() {
	for _, fd := range []int{f.freeze, f.events} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	f.freeze, f.events = -1, -1
}

// Fence asks the kernel to freeze the group and returns at once: no task of
// it will run user code, or be born unseen, once the request has reached it.
// Wait for that with [Group.Freeze]. Lift the fence with [Group.Thaw].
func (g *Group) Fence() error {
	g.fence.mu.Lock()
	defer g.fence.mu.Unlock()
	return g.setFrozen(g.fence.one)
}

// Freeze freezes the group and waits until every task stands still. It does
// not allocate. On timeout the group is thawed again and the error is of kind
// [fault.Deadline]: a task may be in an uninterruptible wait (a disk, a
// vfork), and one that a tracer holds counts as frozen only if it was stopped
// after the request.
func (g *Group) Freeze(timeout time.Duration) error {
	g.fence.mu.Lock()
	defer g.fence.mu.Unlock()
	if err := g.setFrozen(g.fence.one); err != nil {
		return err
	}
	err := g.waitFrozen(timeout)
	if err != nil {
		_ = g.setFrozen(g.fence.zero)
	}
	return err
}

// Thaw lets the group run again. It does not wait: a task runs on when it is
// woken.
func (g *Group) Thaw() error {
	g.fence.mu.Lock()
	defer g.fence.mu.Unlock()
	return g.setFrozen(g.fence.zero)
}

// Frozen tells whether every task of the group stands still now.
func (g *Group) Frozen() (bool, error) {
	g.fence.mu.Lock()
	defer g.fence.mu.Unlock()
	v, err := g.event(keyFrozen)
	return v == '1', err
}

// Populated tells whether the group holds a process that has not ended;
// zombies do not count.
func (g *Group) Populated() (bool, error) {
	g.fence.mu.Lock()
	defer g.fence.mu.Unlock()
	v, err := g.event(keyPopulated)
	return v == '1', err
}

func (g *Group) setFrozen(to []byte) error {
	for {
		_, err := unix.Pwrite(g.fence.freeze, to, 0)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fault.New(fault.Internal, "freeze or thaw cgroup %s: %w", g.id, err)
		}
	}
}

var (
	keyFrozen    = []byte("frozen ")
	keyPopulated = []byte("populated ")
)

// event reads one value of cgroup.events. Reading also arms the next POLLPRI.
func (g *Group) event(key []byte) (byte, error) {
	for {
		n, err := unix.Pread(g.fence.events, g.fence.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, fault.New(fault.Internal, "read cgroup.events of %s: %w", g.id, err)
		}
		i := bytes.Index(g.fence.buf[:n], key)
		if i < 0 || i+len(key) >= n {
			return 0, fault.New(fault.Internal, "cgroup.events of %s has no %q", g.id, key)
		}
		return g.fence.buf[i+len(key)], nil
	}
}

func (g *Group) waitFrozen(timeout time.Duration) error {
	end := time.Now().Add(timeout)
	for {
		v, err := g.event(keyFrozen)
		if err != nil {
			return err
		}
		if v == '1' {
			return nil
		}
		left := time.Until(end)
		if left <= 0 {
			return fault.New(fault.Deadline, "cgroup %s is not frozen after %v", g.id, timeout).
				WithHint("a process waits for a disk or another machine and cannot be stopped")
		}
		// A round up: a poll of 0 ms would spin.
		if _, err := unix.Poll(g.fence.poll, int(left/time.Millisecond)+1); err != nil && err != unix.EINTR {
			return fault.New(fault.Internal, "wait for cgroup %s: %w", g.id, err)
		}
	}
}
