// Package envelope keeps a Go value with the files in it: the value's encoding,
// and the files' contents beside it.
package envelope

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
)

// maxSize bounds the encoding of one value.
const maxSize = 256 << 20

// envelope is what is kept.
type envelope struct {
	// Value is the encoding. A file in it is a number: its index in Files.
	Value []byte            `cbor:"v"`
	Files []content.Content `cbor:"f"`
}

// Write keeps a value. It tells how many bytes of files were read.
func Write(p content.Putter, v any) (c content.Content, read int64, err error) {
	var e envelope
	known := map[int]uint64{} // the same descriptor twice is the same file
	e.Value, err = cbor.MarshalFiles(v, cbor.Files{Put: func(fd int) (uint64, error) {
		if n, ok := known[fd]; ok {
			return n, nil
		}
		c, n, err := keep(p, fd)
		if err != nil {
			return 0, fmt.Errorf("keep file %d: %w", fd, err)
		}
		read += n
		e.Files = append(e.Files, c)
		known[fd] = uint64(len(e.Files) - 1)
		return known[fd], nil
	}})
	if err != nil {
		return content.Content{}, 0, err
	}
	b, err := cbor.Marshal(e)
	if err != nil {
		return content.Content{}, 0, err
	}
	if len(b) > maxSize {
		return content.Content{}, 0, fmt.Errorf("a value of %d bytes", len(b))
	}
	c, err = content.FromBytes(p, b)
	return c, read, err
}

// keep keeps a file without moving its offset, which may be somebody's.
func keep(p content.Putter, fd int) (content.Content, int64, error) {
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return content.Content{}, 0, err
	}
	defer unix.Close(own)
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err != nil {
		return content.Content{}, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return content.Content{}, 0, fmt.Errorf("mode %#o: %w", st.Mode, unix.EINVAL)
	}
	return content.Write(p, own, st.Size)
}

func open(g content.Getter, c content.Content) (e envelope, err error) {
	b, err := c.All(g, maxSize)
	if err != nil {
		return e, err
	}
	if err := cbor.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
	}
	return e, nil
}

// Read reads a value into a pointer to one. Files in it are new anonymous ones,
// which are the value's; after an error there are none.
func Read(ctx context.Context, g content.Getter, c content.Content, into any) error {
	e, err := open(g, c)
	if err != nil {
		return err
	}
	return cbor.UnmarshalFiles(e.Value, into, cbor.Files{Get: func(n uint64) (int, error) {
		if n >= uint64(len(e.Files)) {
			return -1, fmt.Errorf("%w: there is no file %d", chunk.ErrCorrupt, n)
		}
		return restore(ctx, g, &e.Files[n])
	}})
}

func restore(ctx context.Context, g content.Getter, c *content.Content) (int, error) {
	fd, err := unix.MemfdCreate("durable", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if err := c.Restore(ctx, g, fd); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Contents returns the contents of a value's files.
func Contents(g content.Getter, c content.Content) ([]content.Content, error) {
	e, err := open(g, c)
	return e.Files, err
}

// Check decodes a value of a type without making its files, which are left out.
func Check[T any](g content.Getter, c content.Content) (v T, err error) {
	e, err := open(g, c)
	if err != nil {
		return v, err
	}
	err = cbor.UnmarshalFiles(e.Value, &v, cbor.Files{Get: func(n uint64) (int, error) {
		if n >= uint64(len(e.Files)) {
			return -1, fmt.Errorf("%w: there is no file %d", chunk.ErrCorrupt, n)
		}
		return noFile, nil
	}})
	return v, err
}

// noFile is a descriptor that is never open.
const noFile = 1<<31 - 1
