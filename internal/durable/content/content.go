// Package content keeps the bytes of files and other long values as chunks,
// holes left out.
package content

import (
	"fmt"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
)

const (
	// Window is the length of the pieces that content is cut into, at fixed
	// places, so that a change costs no more than the pieces that it is in.
	Window = 128 << 10
	// inlineMax is the length of the longest content that stands in its
	// description.
	inlineMax = 512
	// inlineExtents is the largest number of extents that stand in the
	// description. More are put into lists, each of which has the extents that
	// begin in one span of listSpan bytes, so that lists stay the same around a
	// change.
	inlineExtents = 128
	listSpan      = 256 * Window
	listMax       = 8192
	// MaxSize is the largest content: what a file system takes.
	MaxSize = 1 << 62
)

// Putter takes chunks. A [chunkstore.Session] is one.
type Putter interface {
	// Put keeps a chunk. It may be called by several goroutines.
	Put(b []byte) (chunk.ID, error)
	// Reuse relies on one that a record has.
	Reuse(id chunk.ID) error
}

// Getter reads chunks, checked. A [chunkstore.Store] is one.
type Getter interface {
	Append(dst []byte, id chunk.ID) ([]byte, error)
}

// Content describes content: Size bytes, which are zero but where one of the
// others says something else. At most one of them is set.
type Content struct {
	Size int64 `cbor:"s"`
	// Inline is all of it.
	Inline []byte `cbor:"b"`
	// Extents are pieces, in order.
	Extents []Extent `cbor:"e"`
	// Lists are chunks that are each a CBOR array of extents, in order.
	Lists []chunk.ID `cbor:"l"`
	// Data is how many bytes are in the extents of Lists.
	Data int64 `cbor:"d"`
}

// Extent is a piece of content: a chunk of a length, at a place.
type Extent struct {
	At  int64    `cbor:"a"`
	Len uint32   `cbor:"l"`
	ID  chunk.ID `cbor:"i"`
}

// Check tells what no content can have: it is to be asked of what was read,
// before it is used.
func (c *Content) Check() error {
	kinds := 0
	for _, n := range []int{len(c.Inline), len(c.Extents), len(c.Lists)} {
		if n > 0 {
			kinds++
		}
	}
	switch {
	case c.Size < 0 || c.Size > MaxSize:
		return fmt.Errorf("%w: content of %d bytes", chunk.ErrCorrupt, c.Size)
	case c.Data < 0 || c.Data > c.Size || c.Data > 0 && len(c.Lists) == 0:
		return fmt.Errorf("%w: content of %d bytes in lists", chunk.ErrCorrupt, c.Data)
	case kinds > 1:
		return fmt.Errorf("%w: content of two kinds", chunk.ErrCorrupt)
	case len(c.Inline) > 0 && int64(len(c.Inline)) != c.Size:
		return fmt.Errorf("%w: %d bytes of content, not %d", chunk.ErrCorrupt, len(c.Inline), c.Size)
	}
	_, err := checkExtents(c.Extents, 0, c.Size)
	return err
}

// checkExtents makes sure that extents stand in order between two offsets.
func checkExtents(es []Extent, from, to int64) (end int64, err error) {
	for _, e := range es {
		if e.Len == 0 || e.Len > chunk.Max || e.At < from || e.At > to-int64(e.Len) {
			return 0, fmt.Errorf("%w: content with %d bytes at %d, after %d and before %d", chunk.ErrCorrupt, e.Len, e.At, from, to)
		}
		from = e.At + int64(e.Len)
	}
	return from, nil
}

// Each calls visit for all extents in order. list is called for each chunk
// that is a list, before its extents, if it is not nil; where it returns false
// they are left out.
func (c *Content) Each(g Getter, list func(chunk.ID) bool, visit func(Extent) error) error {
	if err := c.Check(); err != nil {
		return err
	}
	for _, e := range c.Extents {
		if err := visit(e); err != nil {
			return err
		}
	}
	var from int64
	var buf []byte
	for _, id := range c.Lists {
		if list != nil && !list(id) {
			continue
		}
		var err error
		if buf, err = g.Append(buf[:0], id); err != nil {
			return err
		}
		var es []Extent
		if err := cbor.Unmarshal(buf, &es); err != nil {
			return fmt.Errorf("%w: list %s: %w", chunk.ErrCorrupt, id, err)
		}
		if from, err = checkExtents(es, from, c.Size); err != nil {
			return err
		}
		for _, e := range es {
			if err := visit(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// Reuse relies on all chunks of content that a record has.
func (c *Content) Reuse(p Putter, g Getter) error {
	err := c.Each(g, nil, func(e Extent) error { return p.Reuse(e.ID) })
	for _, id := range c.Lists {
		if err == nil {
			err = p.Reuse(id)
		}
	}
	return err
}

// Bytes is how many bytes are not in holes.
func (c *Content) Bytes() int64 {
	n := c.Data + int64(len(c.Inline))
	for _, e := range c.Extents {
		n += int64(e.Len)
	}
	return n
}
