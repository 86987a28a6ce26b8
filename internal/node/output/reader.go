package output

import (
	"errors"
	"io"
)

// Reader reads a stream from a position on. It holds up the filling of the
// stream while it lags. One goroutine uses it.
type Reader struct {
	s   *Stream
	pos uint64 // guarded by s.mu
}

// NewReader makes a reader at an offset. One that is no longer kept moves to
// the oldest that is, one beyond the end to the end. The reader must be closed.
func (s *Stream) NewReader(offset uint64) *Reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Reader{s: s, pos: min(max(offset, s.start), s.end)}
	s.readers[r] = struct{}{}
	return r
}

// Read fills p with what the stream has at the reader's position, and returns
// that position. At the end of the log it returns 0 bytes and no error; see
// [Stream.Changed].
func (r *Reader) Read(p []byte) (n int, at uint64, err error) {
	s := r.s
	s.mu.Lock()
	at = r.pos
	n = int(min(uint64(len(p)), s.end-at)) //nolint:gosec // at most len(p)
	s.mu.Unlock()
	if n == 0 {
		return 0, at, nil
	}
	// What the reader has not passed is never punched, so this needs no lock.
	n, err = s.file.ReadAt(p[:n], int64(at)) //nolint:gosec // a file offset
	if errors.Is(err, io.EOF) && n > 0 {
		err = nil
	}
	if err != nil {
		return 0, at, err
	}
	s.mu.Lock()
	lagged := s.end-r.pos >= Window
	r.pos += uint64(n) //nolint:gosec // not negative
	if lagged {
		s.broadcast() // the filler may wait for this
	}
	s.mu.Unlock()
	return n, at, nil
}

// Position is the offset of the next byte.
func (r *Reader) Position() uint64 {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.pos
}

// Close ends the reader.
func (r *Reader) Close() {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	delete(r.s.readers, r)
	r.s.broadcast()
}
