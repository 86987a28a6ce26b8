package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/linux/feature"
)

const (
	// startWithin bounds the wait for a daemon: the one before it may still
	// be ending.
	startWithin = 30 * time.Second
	// dialEvery is the time between two looks at the socket of a daemon that
	// starts.
	dialEvery = 5 * time.Millisecond
	// logMost is the size at which a daemon's log is begun anew.
	logMost = 16 << 20
)

func defaultState() string {
	if s := os.Getenv("SANDTREE_STATE"); s != "" {
		return s
	}
	return layout.DefaultState
}

// socketPath is the API socket of the chosen daemon.
func (inv *invocation) socketPath() string {
	if inv.socket != "" {
		return inv.socket
	}
	l, err := layout.Of(inv.state)
	if err != nil {
		return "" // serve says what is wrong with it
	}
	return l.Socket()
}

// startDaemon starts `sandtree serve`, apart from this process and its
// terminal, and returns when its socket answers. What the daemon prints goes
// to serve.log in the state directory.
func (inv *invocation) startDaemon(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fault.New(fault.Unavailable, "no daemon answers at %s, and only root can start one", inv.socketPath()).
			WithHint("sudo sandtree serve")
	}
	log, err := inv.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	begin, err := log.Seek(0, 2)
	if err != nil {
		return fault.New(fault.Internal, "start the daemon: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fault.New(fault.Internal, "start the daemon: %w", err)
	}
	cmd := exec.Command(self, "serve", "--state", inv.state, "--socket", inv.socketPath())
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fault.New(fault.Internal, "start the daemon: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return inv.awaitDaemon(ctx, ended, func() string { return tail(log.Name(), begin) })
}

// awaitDaemon returns when the socket answers, or says why it does not.
func (inv *invocation) awaitDaemon(ctx context.Context, ended <-chan error, said func() string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	tick := time.NewTicker(dialEvery)
	defer tick.Stop()
	taken := false // by another daemon
	for {
		c, err := client.Dial(inv.socketPath())
		if err == nil {
			return c.Close()
		}
		select {
		case end := <-ended:
			var exit *exec.ExitError
			if errors.As(end, &exit) && exit.ExitCode() == fault.Code(fault.Conflict).Exit {
				// One runs, or somebody else started one at the same time: wait
				// for that, if it is to answer where we ask.
				ended, taken = nil, true
				continue
			}
			if errors.As(end, &exit) && exit.ExitCode() == fault.Code(fault.Unsupported).Exit {
				if err := feature.Require(ctx); err != nil {
					return err // what it said, in full
				}
			}
			return fault.New(fault.Unavailable, "the daemon ended at its start: %s", said()).WithHint("run it by hand: sandtree serve --state %s", inv.state)
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			return fault.New(fault.Unavailable, "the daemon does not answer at %s within %v", inv.socketPath(), startWithin).
				WithHint("see %s", filepath.Join(inv.state, "serve.log"))
		case <-tick.C:
			if taken {
				if err := inv.elsewhere(); err != nil {
					return err
				}
			}
		}
	}
}

// elsewhere is an error if the daemon of the state directory has another socket
// than the chosen one.
func (inv *invocation) elsewhere() error {
	there := host.SocketOf(inv.state)
	here, err := filepath.Abs(inv.socketPath())
	if err != nil || there == "" || there == here {
		return nil
	}
	return fault.New(fault.Unavailable, "no daemon answers at %s: that of %s has the socket %s", here, inv.state, there).
		WithHint("use --socket %s, or name another state directory with --state, and a daemon is started on it", there)
}

// openLog opens the log of a daemon that is started in the background.
func (inv *invocation) openLog() (*os.File, error) {
	l, err := layout.Of(inv.state)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.State, 0o700); err != nil {
		return nil, fault.New(fault.Internal, "start the daemon: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(l.State, "serve.log"), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fault.New(fault.Internal, "start the daemon: %w", err)
	}
	if info, err := log.Stat(); err == nil && info.Size() > logMost {
		_ = log.Truncate(0)
	}
	return log, nil
}

// tail returns what was written to a file from an offset on, on one line.
func tail(path string, from int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= from {
		return "it said nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(b[from:])), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
