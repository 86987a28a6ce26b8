package child

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Reaper starts children and reaps. A process has at most one.
type Reaper struct {
	mu       sync.Mutex // held over fork and registration, and over each wait
	children map[int]*Child

	signals chan os.Signal
	stop    chan struct{}
	wg      sync.WaitGroup
}

// NewReaper makes the process a subreaper and reaps until Close.
func NewReaper() (*Reaper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fault.New(fault.Unsupported, "become a subreaper: %w", err)
	}
	r := &Reaper{
		children: map[int]*Child{},
		signals:  make(chan os.Signal, 1),
		stop:     make(chan struct{}),
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	r.wg.Go(func() {
		for {
			r.reap()
			select {
			case <-r.signals:
			case <-r.stop:
				return
			}
		}
	})
	return r, nil
}

// Close stops reaping.
func (r *Reaper) Close() {
	signal.Stop(r.signals)
	close(r.stop)
	r.wg.Wait()
}

// reap takes the status of every child that has ended.
func (r *Reaper) reap() {
	for {
		r.mu.Lock()
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, unix.WNOHANG|unix.WALL, nil)
		if c := r.children[pid]; err == nil && pid > 0 && c != nil && (status.Exited() || status.Signaled()) {
			delete(r.children, pid)
			c.status = status
			close(c.done)
		}
		r.mu.Unlock()
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
	}
}
