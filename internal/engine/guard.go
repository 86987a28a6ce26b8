package engine

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// guard says who may read from a session's terminal. What a terminal holds can
// be seen only by taking it out, so a capture takes it out and puts it back;
// whoever read meanwhile would turn two pieces round. So every reader holds the
// guard (flock(2), exclusively) for the time of one read, and a checkpoint for
// the time of its stop.
//
// It is a pipe, of which each holder has an open file description of his own:
// when he dies, the kernel lets go for him. What the node has taken from the
// terminal goes through it on its way to the log, so a node that dies on the
// way leaves it to the next one.
type guard struct{ file *os.File }

func (g *guard) make() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make the guard of a terminal: pipe: %w", err)
	}
	r, w := os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe")
	both, err := reopen(r) // a holder's end that is closed ends it for nobody
	if err = errors.Join(err, r.Close(), w.Close()); err != nil {
		return fmt.Errorf("make the guard of a terminal: %w", err)
	}
	g.file = both
	return nil
}

// open opens the guard once more, for one holder.
func (g *guard) open() (*os.File, error) { return reopen(g.file) }

func reopen(pipe *os.File) (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pipe once more: %w", err)
	}
	return os.NewFile(uintptr(fd), "terminal guard"), nil
}

func (g *guard) close() {
	if g.file != nil {
		_ = g.file.Close()
		g.file = nil
	}
}

// guardTime is how long somebody may read from a terminal.
const guardTime = 5 * time.Second

// hold waits for the guard. Closing what it returns lets go.
func (g *guard) hold() (*os.File, error) {
	f, err := g.open()
	if err != nil {
		return nil, fmt.Errorf("open the guard of a terminal: %w", err)
	}
	fd := int(f.Fd())
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return f, nil
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		_ = f.Close()
		return nil, fmt.Errorf("hold a terminal: flock: %w", err)
	}
	got := make(chan error)
	given := make(chan struct{})
	go func() {
		err := unix.Flock(fd, unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(fd, unix.LOCK_EX)
		}
		select {
		case got <- err:
		case <-given:
			_ = f.Close()
		}
	}()
	timeout := time.NewTimer(guardTime)
	defer timeout.Stop()
	select {
	case err := <-got:
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("hold a terminal: flock: %w", err)
		}
		return f, nil
	case <-timeout.C:
		close(given)
		return nil, fault.New(fault.Unavailable, "hold a terminal: its reader has not finished within %s", guardTime).
			WithHint("look whether the daemon's node hangs, or the disk of its state directory")
	}
}

// holdTerminals holds the guards of all sessions' terminals, until release.
func (s *sessions) holdTerminals() (release func(), err error) {
	s.mu.Lock()
	var guards []guard
	for _, x := range s.all {
		if x.TTY && x.guard.file != nil {
			guards = append(guards, x.guard)
		}
	}
	s.mu.Unlock()
	var held []*os.File
	release = func() {
		for _, f := range held {
			_ = f.Close()
		}
	}
	for _, g := range guards {
		f, err := g.hold()
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, f)
	}
	return release, nil
}
