package output

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// writer moves bytes from a non-blocking descriptor to an offset of the log,
// so that they are in the one or in the other at every instant. It returns 0
// and no error at the descriptor's end.
type writer interface {
	move(fd int, at uint64) (int, error)
	close()
}

// pipeWriter splices from pipes.
type pipeWriter struct{ s *Stream }

func (w *pipeWriter) move(fd int, at uint64) (int, error) {
	off := int64(at) //nolint:gosec // a file offset
	for {
		n, err := unix.Splice(fd, nil, int(w.s.file.Fd()), &off, 1<<20, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return int(n), err
	}
}

func (w *pipeWriter) close() {}

// Sizes of a terminalWriter, in bytes.
const (
	mapSize   = 1 << 20  // of the mapping, and of the zeros behind the log
	terminalN = 16 << 10 // read at once
)

// terminalWriter reads into a mapping of the file.
type terminalWriter struct {
	s        *Stream
	guard    *os.File // or nil
	window   []byte   // maps the file from base on
	base     uint64
	reserved uint64 // the file has blocks up to here
}

func (w *terminalWriter) move(fd int, at uint64) (int, error) {
	if err := w.prepare(at); err != nil {
		return 0, err
	}
	p := w.window[at-w.base : at-w.base+terminalN]
	if err := w.lock(unix.LOCK_EX); err != nil {
		return 0, err
	}
	for {
		n, err := unix.Read(fd, p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return max(n, 0), errors.Join(err, w.lock(unix.LOCK_UN))
	}
}

// lock locks or unlocks the guard. It waits as long as a stop of the sandbox.
func (w *terminalWriter) lock(how int) error {
	if w.guard == nil {
		return nil
	}
	for {
		err := unix.Flock(int(w.guard.Fd()), how)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("lock the guard of a terminal: %w", err)
		}
		return nil
	}
}

// prepare makes the mapping hold terminalN bytes at an offset, with blocks
// behind them: a page that the file system had no room for would turn the read
// into EFAULT, after it took the bytes.
func (w *terminalWriter) prepare(at uint64) error {
	if w.window == nil || at+terminalN > w.base+mapSize {
		w.close()
		base := at &^ 4095
		if err := w.s.file.Truncate(int64(base + mapSize)); err != nil { //nolint:gosec // a file offset
			return fmt.Errorf("lengthen log: %w", err)
		}
		m, err := unix.Mmap(int(w.s.file.Fd()), int64(base), mapSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) //nolint:gosec // a file offset
		if err != nil {
			return fmt.Errorf("map log: %w", err)
		}
		w.window, w.base = m, base
	}
	if at+terminalN > w.reserved {
		if err := reserve(w.s.file, at, 4*terminalN); err != nil {
			return fmt.Errorf("reserve room for log: %w", err)
		}
		w.reserved = at + 4*terminalN
	}
	return nil
}

func (w *terminalWriter) close() {
	if w.window != nil {
		_ = unix.Munmap(w.window)
		w.window = nil
	}
}

// reserve gives the file n blocks' worth of room at an offset.
func reserve(f *os.File, at, n uint64) error {
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, int64(at), int64(n)) //nolint:gosec // file offsets
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.WriteAt(make([]byte, n), int64(at)) //nolint:gosec // a file offset
	}
	return err
}

// trimZeros finds where the log of a terminal ends in its file: after the last
// byte that is not zero. It cuts the file there.
func trimZeros(f *os.File, size int64) (int64, error) {
	const step = 64 << 10
	buf := make([]byte, step)
	end := size
	for end > 0 {
		n := min(end, step)
		if _, err := f.ReadAt(buf[:n], end-n); err != nil {
			return 0, err
		}
		kept := len(bytes.TrimRight(buf[:n], "\x00"))
		end = end - n + int64(kept)
		if kept > 0 || size-end > 4*mapSize {
			break // no more zeros than these were ever ours
		}
	}
	return end, f.Truncate(end)
}
