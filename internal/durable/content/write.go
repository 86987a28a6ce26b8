package content

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
)

var windows = sync.Pool{New: func() any { b := make([]byte, Window); return &b }}

// Write keeps an open file's first size bytes, and tells how many of them were
// read: the holes that the file system tells of (SEEK_DATA in lseek(2)) are not,
// and stay holes. The file's offset moves.
func Write(p Putter, fd int, size int64) (c Content, read int64, err error) {
	w := writer{p: p, c: Content{Size: size}}
	for at := int64(0); at < size; {
		start, end, err := dataAfter(fd, at, size)
		if err != nil {
			return Content{}, 0, fmt.Errorf("look for holes: %w", err)
		}
		if start >= size {
			break
		}
		if start == 0 && size <= inlineMax {
			w.c.Inline = make([]byte, size)
			if err := readFull(fd, w.c.Inline, 0); err != nil {
				return Content{}, 0, err
			}
			return w.c, size, nil
		}
		for start < end {
			n := min(end, start&^(Window-1)+Window) - start
			if err := w.piece(fd, start, int(n)); err != nil {
				return Content{}, 0, err
			}
			start += n
			read += n
		}
		at = end
	}
	err = w.finish()
	return w.c, read, err
}

// dataAfter finds the next run of data in a file, at or after an offset; it
// begins at size if there is none.
func dataAfter(fd int, at, size int64) (start, end int64, err error) {
	start, err = unix.Seek(fd, at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return size, size, nil
	case errors.Is(err, unix.EINVAL): // it cannot tell
		return at, size, nil
	case err != nil:
		return 0, 0, err
	}
	if start >= size {
		return size, size, nil
	}
	end, err = unix.Seek(fd, start, unix.SEEK_HOLE)
	return start, min(end, size), err
}

func readFull(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("read at %d: %w", at, err)
		case n == 0:
			return fmt.Errorf("read at %d: %w", at, io.ErrUnexpectedEOF)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// writer collects extents.
type writer struct {
	p   Putter
	c   Content
	all []Extent // of the span under way
}

func (w *writer) piece(fd int, at int64, n int) error {
	buf := windows.Get().(*[]byte)
	defer windows.Put(buf)
	if err := readFull(fd, (*buf)[:n], at); err != nil {
		return err
	}
	return w.put(at, (*buf)[:n])
}

func (w *writer) put(at int64, b []byte) error {
	if n := len(w.all); n > 0 && (at/listSpan != w.all[0].At/listSpan || n == listMax) {
		if err := w.list(); err != nil {
			return err
		}
	}
	id, err := w.p.Put(b)
	if err != nil {
		return err
	}
	w.all = append(w.all, Extent{at, uint32(len(b)), id})
	return nil
}

// list makes a chunk of the extents so far.
func (w *writer) list() error {
	b, err := cbor.Marshal(w.all)
	if err != nil {
		return err
	}
	id, err := w.p.Put(b)
	if err != nil {
		return err
	}
	w.c.Lists = append(w.c.Lists, id)
	for _, e := range w.all {
		w.c.Data += int64(e.Len)
	}
	w.all = w.all[:0]
	return nil
}

func (w *writer) finish() error {
	if len(w.c.Lists) == 0 && len(w.all) <= inlineExtents {
		w.c.Extents = w.all
		return nil
	}
	if len(w.all) == 0 {
		return nil
	}
	return w.list()
}

// FromBytes keeps a value that is in memory.
func FromBytes(p Putter, b []byte) (Content, error) {
	w := writer{p: p, c: Content{Size: int64(len(b))}}
	if len(b) <= inlineMax {
		if len(b) > 0 {
			w.c.Inline = append([]byte(nil), b...)
		}
		return w.c, nil
	}
	for at := 0; at < len(b); at += Window {
		if err := w.put(int64(at), b[at:min(at+Window, len(b))]); err != nil {
			return Content{}, err
		}
	}
	err := w.finish()
	return w.c, err
}
