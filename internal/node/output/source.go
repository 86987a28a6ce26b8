package output

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// source is a pipe's read end or a terminal's master while it fills a stream.
// Its flags are guarded by the stream's mutex.
type source struct {
	file  *os.File
	guard *os.File // of a terminal; see [Log.FillTerminal]
	conn  syscall.RawConn
	done  chan struct{} // closed when its goroutine has ended

	stopping bool
	settling bool // somebody wants to know when it was found empty
	settled  bool // it was found empty since, or has ended
	ended    bool // end of file, or the terminal was hung up
}

// retryFull is how long a full disk is left alone.
const retryFull = 250 * time.Millisecond

var longAgo = time.Unix(1, 0)

// Fill starts to fill the stream from a pipe, which stays the caller's: the
// stream works on a duplicate, and makes the open file description
// non-blocking. What filled it before is stopped first. A terminal's stream is
// filled by [Log.FillTerminal].
func (s *Stream) Fill(f *os.File) error { return s.fillFrom(f, nil) }

// fillFrom is Fill with a terminal's guard.
func (s *Stream) fillFrom(f, guard *os.File) error {
	s.Stop()
	src := &source{done: make(chan struct{})}
	var err error
	if src.file, err = Duplicate(f); err != nil {
		return fmt.Errorf("fill log: %w", err)
	}
	if src.conn, err = src.file.SyscallConn(); err != nil {
		return errors.Join(fmt.Errorf("fill log: %w", err), src.file.Close())
	}
	w := writer(&pipeWriter{s: s})
	if s.terminal {
		if src.guard, err = duplicate(guard); err == nil {
			w, err = newTerminalWriter(s, src.guard)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("fill log: %w", err), src.close())
		}
	}
	s.mu.Lock()
	s.src = src
	s.mu.Unlock()
	go s.fill(src, w)
	return nil
}

// close closes the stream's own descriptors.
func (src *source) close() error {
	err := src.file.Close()
	if src.guard != nil {
		err = errors.Join(err, src.guard.Close())
	}
	return err
}

// Duplicate returns a non-blocking duplicate of a descriptor, close-on-exec,
// that the runtime's poller waits for.
func Duplicate(f *os.File) (*os.File, error) {
	fd, err := duplicateFD(f)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), f.Name()), nil //nolint:gosec // a descriptor
}

// duplicate is a duplicate with the description's flags as they are.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := duplicateFD(f)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil //nolint:gosec // a descriptor
}

func duplicateFD(f *os.File) (fd int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	var derr error
	if err := conn.Control(func(raw uintptr) {
		fd, derr = unix.FcntlInt(raw, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	return fd, os.NewSyscallError("dup", derr)
}

// Stop stops the filling, if there is any, and returns when no byte is under
// way. What the source still holds stays in it.
func (s *Stream) Stop() {
	s.mu.Lock()
	src := s.src
	if src == nil {
		s.mu.Unlock()
		return
	}
	src.stopping = true
	s.broadcast()
	s.mu.Unlock()
	_ = src.file.SetReadDeadline(longAgo)
	<-src.done
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.src == src {
		s.src = nil
		s.broadcast()
	}
}

// Settle asks that [Stream.Settled] become true as soon as all that the source
// holds now is in the log.
func (s *Stream) Settle() {
	s.mu.Lock()
	src := s.src
	if src == nil || src.settled || src.settling {
		s.mu.Unlock()
		return
	}
	src.settling = true
	s.mu.Unlock()
	_ = src.file.SetReadDeadline(longAgo) // it tries again, and finds it empty
}

// Settled reports that all that the source held when [Stream.Settle] was
// called is in the log. A stream without a source is settled.
func (s *Stream) Settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.src == nil || s.src.settled
}

// fill is the goroutine that moves bytes from a source to the log's end.
func (s *Stream) fill(src *source, w writer) {
	defer func() {
		_ = src.close()
		s.mu.Lock()
		src.settled = true
		s.broadcast()
		s.mu.Unlock()
		close(src.done)
	}()
	full := false
	for s.waitForRoom(src) {
		n, err := s.step(src, w)
		switch {
		case n > 0:
			s.appended(n)
			full = false
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Stop or Settle want attention.
			_ = src.file.SetReadDeadline(time.Time{})
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
			if !full {
				full = true
				s.log.Error("the disk of the state directory is full: a session's output waits", "file", s.path, "error", err)
			}
			s.waitStopping(src, retryFull)
		case err == nil, errors.Is(err, unix.EIO) && s.terminal:
			// End of file; a terminal that nobody holds any more says EIO.
			s.mu.Lock()
			src.ended = true
			s.mu.Unlock()
			return
		default:
			s.log.Error("a session's output cannot be logged", "file", s.path, "error", err)
			return
		}
	}
}

// step moves bytes once, waiting for them if there are none. It returns 0 and
// no error at the source's end.
func (s *Stream) step(src *source, w writer) (n int, err error) {
	var werr error
	err = src.conn.Read(func(fd uintptr) bool {
		n, werr = 0, nil
		if s.file == nil { // only this goroutine makes it
			if !w.holds() {
				werr = ready(int(fd))
			}
			if werr == nil {
				werr = s.need()
			}
		}
		if werr == nil {
			n, werr = w.move(int(fd), s.end) // only this goroutine changes end
		}
		if errors.Is(werr, unix.EAGAIN) {
			s.foundEmpty(src)
			return false
		}
		return true
	})
	if err != nil {
		return 0, err
	}
	if errors.Is(werr, errEnd) {
		return 0, nil
	}
	return n, werr
}

// errEnd says that a descriptor ends without another byte.
var errEnd = errors.New("end")

// ready says whether a descriptor has a byte (nil), may have one later
// (EAGAIN), or ends without (errEnd).
func ready(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	for {
		_, err := unix.Poll(p, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case p[0].Revents&unix.POLLIN != 0:
			return nil
		case p[0].Revents != 0:
			return errEnd
		}
		return unix.EAGAIN
	}
}

func (s *Stream) foundEmpty(src *source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if src.settling && !src.settled {
		src.settled = true
		s.broadcast()
	}
}

// waitForRoom waits until no reader lags too far behind. It returns false when
// the source is to stop.
func (s *Stream) waitForRoom(src *source) bool {
	for {
		s.mu.Lock()
		stop := src.stopping
		pos, ok := s.slowest()
		changed := s.changed
		lag := ok && s.end-pos >= Window
		s.mu.Unlock()
		if stop || !lag {
			return !stop
		}
		<-changed
	}
}

// waitStopping waits for some time, or less if the source is to stop.
func (s *Stream) waitStopping(src *source, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		s.mu.Lock()
		stop, changed := src.stopping, s.changed
		s.mu.Unlock()
		if stop {
			return
		}
		select {
		case <-t.C:
			return
		case <-changed:
		}
	}
}
