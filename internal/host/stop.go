package host

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/host/layout"
)

// Stopped is a daemon that has ended.
type Stopped struct {
	PID int
	// Report says what became of sandboxes; nil: nothing was hibernated.
	Report *control.Stopped
}

// Stop ends the daemon of a state directory in an orderly way, as SIGTERM does,
// and returns when all of its processes have ended. With now it does not wait for
// sandboxes to be hibernated, as SIGUSR1. Without a daemon the error is of kind
// Unavailable. When ctx ends it is still ending.
func Stop(ctx context.Context, state string, now bool) (Stopped, error) {
	l, err := layout.Of(state)
	if err != nil {
		return Stopped{}, err
	}
	signal := unix.SIGTERM
	if now {
		signal = unix.SIGUSR1
	}
	begin := time.Now()
	pid, err := stopDaemon(ctx, l, signal)
	if err != nil {
		return Stopped{}, err
	}
	return Stopped{PID: pid, Report: stoppedReport(l, begin)}, nil
}

// maxReport bounds what is read of what a node has written.
const maxReport = 4 << 20

// stoppedReport reads what the node has left word of since begin.
func stoppedReport(l layout.Layout, begin time.Time) *control.Stopped {
	f, err := os.OpenFile(filepath.Join(l.State, "node", control.StoppedFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	var r control.Stopped
	if json.NewDecoder(io.LimitReader(f, maxReport)).Decode(&r) != nil || r.Time.Before(begin) {
		return nil
	}
	return &r
}

func stopDaemon(ctx context.Context, l layout.Layout, signal unix.Signal) (pid int, err error) {
	none := fault.New(fault.Unavailable, "no daemon runs on state directory %s", l.State)
	f, err := os.Open(l.Lock())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, none
	case errors.Is(err, fs.ErrPermission):
		return 0, fault.New(fault.Permission, "stop the daemon: %w", err).WithHint("sudo sandtree stop")
	case err != nil:
		return 0, fault.New(fault.Internal, "stop the daemon: %w", err)
	}
	defer f.Close()
	var h holder
	if err := json.NewDecoder(f).Decode(&h); err != nil || h.PID <= 1 {
		if free(f) {
			return 0, none
		}
		return 0, fault.New(fault.Conflict, "the daemon on state directory %s is just starting", l.State).WithHint("try again")
	}
	pidfd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return 0, fault.New(fault.Internal, "stop the daemon: pidfd_open %d: %w", h.PID, err)
	}
	if err == nil {
		defer unix.Close(pidfd)
	}
	// Whoever holds the lock now was there when its pid was looked up, and so it
	// is this one.
	if free(f) || err != nil {
		return 0, none
	}
	if err := unix.PidfdSendSignal(pidfd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return 0, fault.New(fault.Internal, "stop the daemon: signal process %d: %w", h.PID, err)
	}
	if err := ended(ctx, pidfd); err != nil {
		return 0, err
	}
	held, err := hold(ctx, l)
	if err != nil {
		return 0, err
	}
	return h.PID, held.Close()
}

// free reports whether nobody holds the lock of a state directory.
func free(f *os.File) bool {
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		return false
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	return true
}

// ended waits until a process has ended.
func ended(ctx context.Context, pidfd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100) //nolint:gosec // a descriptor
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fault.New(fault.Internal, "wait for the daemon: poll: %w", err)
		case ctx.Err() != nil:
			return fault.New(fault.Canceled, "wait for the daemon: %w", ctx.Err()).WithHint("it goes on ending")
		}
	}
}
