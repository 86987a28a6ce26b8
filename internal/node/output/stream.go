package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounds of a stream, in bytes.
const (
	// Window is how far a log is filled ahead of its slowest reader.
	Window = 16 << 20
	// Keep is how much of a log stays readable.
	Keep = 64 << 20
	// punchStep is how much more than Keep gathers before a hole is punched.
	punchStep = 4 << 20
)

// Stream is the log of one output stream: a file of bytes, of which those from
// Start to End can be read. It is safe for concurrent use.
type Stream struct {
	path     string
	terminal bool
	log      *slog.Logger

	mu      sync.Mutex
	file    *os.File // nil: nothing was printed yet; set before end is
	start   uint64
	end     uint64
	readers map[*Reader]struct{}
	changed chan struct{} // closed and replaced when anything here changes
	src     *source       // what fills it; nil: nothing
	noHoles bool          // the file system cannot punch
	closed  bool
}

// open opens the stream's file if there is one, and finds where the log begins
// and ends. Most commands print nothing to one of their streams or to both, and
// files cost more than all else here: so there is none before the first byte.
func open(path string, terminal bool, log *slog.Logger) (*Stream, error) {
	s := &Stream{path: path, terminal: terminal, log: log, readers: map[*Reader]struct{}{}, changed: make(chan struct{})}
	// Not O_APPEND: splice(2) refuses it.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	s.file = f
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open log %s: %w", path, err), f.Close())
	}
	return s, nil
}

// need makes the file, and its directory, for the first byte. Only the
// goroutine that fills the stream calls it.
func (s *Stream) need() error {
	if s.file != nil {
		return nil
	}
	const flags = os.O_RDWR | os.O_CREATE
	f, err := os.OpenFile(s.path, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(s.path), 0o700); err == nil {
			f, err = os.OpenFile(s.path, flags, 0o600)
		}
	}
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file = f
	return nil
}

func (s *Stream) recover() error {
	size, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	s.end = uint64(size) //nolint:gosec // not negative
	if size == 0 {
		return nil
	}
	data, err := s.file.Seek(0, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		s.start = s.end
	case err == nil:
		s.start = min(uint64(data), s.end) //nolint:gosec // not negative
	}
	return nil
}

// Start is the offset of the oldest byte that is kept.
func (s *Stream) Start() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start
}

// End is the offset after the newest byte.
func (s *Stream) End() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Changed returns a channel that is closed at the next change of the stream:
// more bytes, or its source's end. Take it before looking.
func (s *Stream) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// broadcast wakes who waits for a change. s.mu is held.
func (s *Stream) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// appended notes n new bytes in the file and forgets the oldest.
func (s *Stream) appended(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end += uint64(n) //nolint:gosec // not negative
	if s.end-s.start > Keep+punchStep && !s.noHoles {
		s.punch()
	}
	s.broadcast()
}

// punch gives the room of the oldest bytes back. s.mu is held.
func (s *Stream) punch() {
	to := s.end - Keep
	if p, ok := s.slowest(); ok {
		to = min(to, p)
	}
	to &^= 4095
	if to <= s.start {
		return
	}
	err := unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(to)) //nolint:gosec // file offsets
	if err != nil {
		s.noHoles = true
		s.log.Warn("a session's log cannot be shortened: the file system of the state directory punches no holes",
			"file", s.path, "error", err)
		return
	}
	s.start = to
}

// slowest returns the position of the slowest reader. s.mu is held.
func (s *Stream) slowest() (pos uint64, ok bool) {
	for r := range s.readers {
		if !ok || r.pos < pos {
			pos, ok = r.pos, true
		}
	}
	return pos, ok
}

// Close stops the filling and closes the file.
func (s *Stream) Close() error {
	s.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.broadcast()
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
