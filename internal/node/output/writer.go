package output

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// writer moves bytes from a non-blocking descriptor to an offset of the log,
// so that at every instant they are where a kill of this process leaves them. It
// returns 0 and no error at the descriptor's end.
type writer interface {
	// holds reports that there are bytes to move that the descriptor has no more.
	holds() bool
	move(fd int, at uint64) (int, error)
}

// pipeWriter splices from pipes.
type pipeWriter struct{ s *Stream }

func (w *pipeWriter) holds() bool { return false }

func (w *pipeWriter) move(fd int, at uint64) (int, error) { return w.s.splice(fd, at) }

// splice moves what a pipe holds to an offset of the file.
func (s *Stream) splice(pipe int, at uint64) (int, error) {
	off := int64(at) //nolint:gosec // a file offset
	for {
		n, err := unix.Splice(pipe, nil, int(s.file.Fd()), &off, 1<<20, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return int(n), err
	}
}

// terminalN is how much is taken from a terminal at once, in bytes; a pipe
// holds it.
const terminalN = 16 << 10

// terminalWriter splices from a terminal into the guard's pipe, and from there
// to the log.
type terminalWriter struct {
	s     *Stream
	guard *os.File
	held  int // bytes in the guard's pipe
}

// newTerminalWriter finds what an earlier process left in the pipe.
func newTerminalWriter(s *Stream, guard *os.File) (*terminalWriter, error) {
	n, err := unix.IoctlGetInt(int(guard.Fd()), unix.TIOCINQ)
	if err != nil {
		return nil, fmt.Errorf("look into the guard of a terminal: %w", err)
	}
	return &terminalWriter{s: s, guard: guard, held: n}, nil
}

func (w *terminalWriter) holds() bool { return w.held > 0 }

func (w *terminalWriter) move(fd int, at uint64) (int, error) {
	if w.held == 0 {
		n, err := w.take(fd)
		if n == 0 || err != nil {
			return 0, err
		}
		w.held = n
	}
	n, err := w.s.splice(int(w.guard.Fd()), at)
	if err != nil {
		return 0, err
	}
	w.held -= n
	return n, nil
}

// take moves bytes from the terminal to the pipe while it has the guard. It
// waits for that as long as a stop of the sandbox.
func (w *terminalWriter) take(fd int) (int, error) {
	guard := int(w.guard.Fd())
	if err := lock(guard, unix.LOCK_EX); err != nil {
		return 0, err
	}
	for {
		n, err := unix.Splice(fd, nil, guard, nil, terminalN, unix.SPLICE_F_NONBLOCK)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return int(max(n, 0)), errors.Join(err, lock(guard, unix.LOCK_UN))
	}
}

// lock locks or unlocks a guard.
func lock(guard, how int) error {
	for {
		err := unix.Flock(guard, how)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock the guard of a terminal: %w", err)
		}
		return nil
	}
}
