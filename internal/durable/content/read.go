package content

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/fault"
)

// Restore writes the content into an empty file, with its holes.
func (c *Content) Restore(ctx context.Context, g Getter, fd int) error {
	if err := c.Check(); err != nil {
		return err
	}
	if err := ignoringEINTR(func() error { return unix.Ftruncate(fd, c.Size) }); err != nil {
		return fmt.Errorf("set the length to %d: %w", c.Size, err)
	}
	if len(c.Inline) > 0 {
		return writeFull(fd, c.Inline, 0)
	}
	if len(c.Lists) > 0 || len(c.Extents) > 2 {
		return c.restoreMany(ctx, g, fd)
	}
	return c.Each(g, nil, func(e Extent) error { return restore(g, e, fd) })
}

func restore(g Getter, e Extent, fd int) error {
	buf := windows.Get().(*[]byte)
	defer windows.Put(buf)
	b, err := g.Append((*buf)[:0], e.ID)
	if err != nil {
		return err
	}
	if len(b) != int(e.Len) {
		return fmt.Errorf("%w %s: %d bytes, not %d", chunk.ErrCorrupt, e.ID, len(b), e.Len)
	}
	return writeFull(fd, b, e.At)
}

// restoreMany reads and decompresses on all processors.
func (c *Content) restoreMany(ctx context.Context, g Getter, fd int) error {
	var wg sync.WaitGroup
	n := runtime.GOMAXPROCS(0)
	extents := make(chan Extent, n)
	errs := make([]error, n)
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range n {
		wg.Go(func() {
			for e := range extents {
				if errs[i] = restore(g, e, fd); errs[i] != nil {
					cancel()
					return
				}
			}
		})
	}
	err := c.Each(g, nil, func(e Extent) error {
		select {
		case extents <- e:
			return nil
		case <-stop.Done():
			return fault.New(fault.Canceled, "%w", context.Cause(ctx))
		}
	})
	close(extents)
	wg.Wait()
	if first := errors.Join(errs...); first != nil {
		return first
	}
	return err
}

func writeFull(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write at %d: %w", at, err)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// All returns content as a value in memory, if it is not longer than limit.
func (c *Content) All(g Getter, limit int64) ([]byte, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Size > limit {
		return nil, fmt.Errorf("%w: a value of %d bytes", chunk.ErrCorrupt, c.Size)
	}
	if len(c.Inline) > 0 {
		return append([]byte(nil), c.Inline...), nil
	}
	var out []byte // grows with what is there, not with what is promised
	err := c.Each(g, nil, func(e Extent) error {
		if e.At != int64(len(out)) {
			return fmt.Errorf("%w: a value with a hole", chunk.ErrCorrupt)
		}
		var err error
		out, err = g.Append(out, e.ID)
		if err == nil && int64(len(out)) != e.At+int64(e.Len) {
			err = fmt.Errorf("%w %s: not %d bytes", chunk.ErrCorrupt, e.ID, e.Len)
		}
		return err
	})
	if err == nil && int64(len(out)) != c.Size {
		err = fmt.Errorf("%w: a value of %d bytes, not %d", chunk.ErrCorrupt, len(out), c.Size)
	}
	return out, err
}
