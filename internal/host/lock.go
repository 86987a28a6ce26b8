package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/layout"
)

// goneWithin bounds the wait for the processes of a killed daemon to end.
const goneWithin = 20 * time.Second

// holder is what the lock file says of the daemon that holds it.
type holder struct {
	PID    int    `json:"pid"`
	Socket string `json:"socket"`
}

// lock takes the state directory for this process. It is held until the file
// is closed or the process ends.
func lock(l layout.Layout, socket string) (*os.File, error) {
	f, err := os.OpenFile(l.Lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.New(fault.Internal, "lock state directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		var h holder
		if json.NewDecoder(f).Decode(&h) != nil {
			return nil, fault.New(fault.Conflict, "state directory %s: another daemon is just starting on it", l.State)
		}
		return nil, fault.New(fault.Conflict, "state directory %s: another daemon runs on it, process %d with socket %s", l.State, h.PID, h.Socket).
			WithHint("use that daemon (--socket %s), stop it, or choose another --state", h.Socket)
	}
	if err == nil {
		err = describe(f, holder{PID: os.Getpid(), Socket: socket})
	}
	if err != nil {
		f.Close()
		return nil, fault.New(fault.Internal, "lock state directory %s: %w", l.State, err)
	}
	return f, nil
}

// SocketOf returns the API socket of the daemon that runs on a state directory, or
// began to run last; nothing if that is not known.
func SocketOf(state string) string {
	l, err := layout.Of(state)
	if err != nil {
		return ""
	}
	b, err := os.ReadFile(l.Lock())
	var h holder
	if err != nil || json.Unmarshal(b, &h) != nil {
		return ""
	}
	return h.Socket
}

func describe(f *os.File, h holder) error {
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(b, '\n'), 0)
	return err
}

// hold waits until no process of an earlier daemon is left, and returns the
// file that all processes of this one keep open, so that the next can wait.
func hold(ctx context.Context, l layout.Layout) (*os.File, error) {
	f, err := os.OpenFile(l.Held(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fault.New(fault.Internal, "wait for an earlier daemon: %w", err)
	}
	taken := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if err != unix.EINTR {
				taken <- err
				return
			}
		}
	}()
	late := time.NewTimer(goneWithin)
	defer late.Stop()
	select {
	case err = <-taken:
	case <-ctx.Done():
		// Here and below the goroutine waits on; the caller ends the process.
		return nil, fault.New(fault.Canceled, "wait for an earlier daemon: %w", ctx.Err())
	case <-late.C:
		return nil, fault.New(fault.Conflict, "state directory %s: processes of an earlier daemon have not ended within %v", l.State, goneWithin).
			WithHint("see which they are: fuser -v %s", l.Held())
	}
	if err != nil {
		f.Close()
		return nil, fault.New(fault.Internal, "wait for an earlier daemon: %w", fmt.Errorf("flock: %w", err))
	}
	return f, nil
}
