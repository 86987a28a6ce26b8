package layer

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Spool keeps file contents in one temporary file without a name, so that
// nothing stays behind whatever happens. Long runs of zeros take no room.
// It is for one goroutine; what was added can be read by many.
type Spool struct {
	f   *os.File
	end int64
	buf []byte
}

// NewSpool makes an empty spool in a directory.
func NewSpool(dir string) (*Spool, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &Spool{f: os.NewFile(uintptr(fd), filepath.Join(dir, "spool")), buf: make([]byte, 64<<10)}, nil
	}
	f, err := os.CreateTemp(dir, "spool-") // a file system without O_TMPFILE
	if err != nil {
		return nil, fmt.Errorf("make spool: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("make spool: %w", err)
	}
	return &Spool{f: f, buf: make([]byte, 64<<10)}, nil
}

// Close frees the contents.
func (s *Spool) Close() error { return s.f.Close() }

// Add copies size bytes and returns a function that opens them. It returns
// io.ErrUnexpectedEOF if r has less.
func (s *Spool) Add(r io.Reader, size int64) (func() (io.ReadCloser, error), error) {
	start, hole := s.end, false
	for done := int64(0); done < size; {
		b := s.buf[:min(int64(len(s.buf)), size-done)]
		if _, err := io.ReadFull(r, b); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if hole = len(b) == len(s.buf) && bytes.Equal(b, zeros[:]); !hole {
			if _, err := s.f.WriteAt(b, start+done); err != nil {
				return nil, err
			}
		}
		done += int64(len(b))
	}
	s.end = start + size
	if hole {
		if err := s.f.Truncate(s.end); err != nil {
			return nil, err
		}
	}
	return func() (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(s.f, start, size)), nil
	}, nil
}

var zeros [64 << 10]byte
