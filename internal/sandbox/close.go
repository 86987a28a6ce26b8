package sandbox

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Close kills everything inside and waits until it is gone: processes,
// namespaces, mounts and cgroup. It returns an error of kind Deadline if ctx
// ends before; what was killed goes on dying then, and the host removes the
// cgroup later. It does its work once; further calls return the same.
func (i *Incarnation) Close(ctx context.Context) error {
	i.closing.Do(func() { i.closed = i.close(ctx) })
	return i.closed
}

func (i *Incarnation) close(ctx context.Context) error {
	err := i.kill(ctx)
	if e := i.init.Close(); err == nil && e != nil {
		err = fault.New(fault.Internal, "end the incarnation: %w", e)
	}
	if e := i.release(ctx); err == nil {
		err = e
	}
	return err
}

// CloseBehind is [Incarnation.Close] beside work that somebody waits for, such as
// what the next incarnation does first: for some time the processes end only where
// a processor has nothing else to do. To end a process with a large memory takes
// milliseconds.
func (i *Incarnation) CloseBehind(ctx context.Context) error {
	i.group.Recede()
	advance := time.AfterFunc(behindTime, i.group.Advance)
	defer advance.Stop()
	return i.Close(ctx)
}

// behindTime is how long what ends lets others go before. It holds memory.
const behindTime = 50 * time.Millisecond

// kill ends all processes and waits for PID 1, which ends last.
func (i *Incarnation) kill(ctx context.Context) error {
	// PID 1's end takes the whole pid namespace along, so its own signal is
	// enough; cgroup.kill also reaches what is being restored into the group.
	err := unix.PidfdSendSignal(i.pidfd, unix.SIGKILL, nil, 0)
	if err != nil && err != unix.ESRCH {
		return fault.New(fault.Internal, "end PID 1: %w", err)
	}
	if err := i.group.Kill(); err != nil {
		return err
	}
	if err := waitEnd(ctx, i.pidfd); err != nil {
		return err
	}
	i.seed.reap(i.pid)
	return nil
}

// waitEnd polls a pidfd until its process has ended.
func waitEnd(ctx context.Context, pidfd int) error {
	deadline, bounded := ctx.Deadline()
	for {
		timeout := 100 // ms, to look at ctx
		if bounded {
			timeout = min(timeout, max(0, int(time.Until(deadline).Milliseconds())))
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, timeout)
		switch {
		case n == 1:
			return nil
		case err != nil && err != unix.EINTR:
			return fault.New(fault.Internal, "wait for the end of PID 1: %w", err)
		case ctx.Err() != nil:
			return fault.New(fault.Deadline, "wait for the end of PID 1: %w", ctx.Err()).
				WithHint("a process inside waits for a disk and cannot end before that")
		}
	}
}

// release gives up what outlives the processes.
func (i *Incarnation) release(ctx context.Context) error {
	err := errors.Join(i.group.Remove(ctx), i.shows.Release())
	i.group.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.pidfd >= 0 {
		unix.Close(i.pidfd)
		i.pidfd = -1
	}
	return err
}

// bootPatience bounds the end of an incarnation that did not come up.
const bootPatience = 10 * time.Second

// abandon is Close for a failed Boot.
func (i *Incarnation) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), bootPatience)
	defer cancel()
	if i.pidfd >= 0 {
		_ = i.kill(ctx)
	} else {
		_ = i.group.Kill()
	}
	_ = i.release(ctx)
}
