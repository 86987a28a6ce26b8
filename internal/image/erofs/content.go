package erofs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/bits"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// minChunk is the run of zeros worth leaving out. It is larger than a block so
	// that a program with a page of zeros inside stays one extent.
	minChunk = 64 << 10
	// maxChunks bounds the chunk map of one file; larger files have larger
	// chunks.
	maxChunks = 1 << 18
	// maxInlineTail is the longest tail that is kept behind its inode. Longer
	// ones waste less in a block of their own.
	maxInlineTail = BlockSize / 2
	// MaxFileSize bounds the length of a regular file, in bytes.
	MaxFileSize = 1 << 44
)

// content tells where a regular file's bytes went.
type content struct {
	layout uint16
	union  uint32
	tail   []byte // inline data, with layoutInline
	chunks []byte // chunk map, with layoutChunks
}

// contentWriter copies regular files into data blocks.
type contentWriter struct {
	out *output
	buf [minChunk]byte
	sum uint32 // of all that is not zeros, for the image's UUID
}

var zeros [minChunk]byte

// chunkSize returns the chunk size of a file, a power of two times minChunk.
func chunkSize(size int64) int64 {
	c := int64(minChunk)
	for (size+c-1)/c > maxChunks {
		c *= 2
	}
	return c
}

// copy reads size bytes and writes them. inlineRoom is how long a tail may be
// for it to fit behind the inode. check is asked now and then whether to go on.
func (w *contentWriter) copy(r io.Reader, size, inlineRoom int64, check func() error) (content, error) {
	chunk := chunkSize(size)
	start := w.out.next
	spare := size % BlockSize
	if spare > min(inlineRoom, maxInlineTail) {
		spare = 0
	}
	var tail []byte
	var blocks []uint32 // by chunk, from the first that was left out on
	for off := int64(0); off < size; off += chunk {
		if err := errors.Join(check(), w.out.err); err != nil {
			return content{}, err
		}
		length, inline := min(chunk, size-off), int64(0)
		if off+length == size && blocks == nil {
			inline = spare
		}
		at, rest, err := w.copyChunk(r, off, length, inline, blocks != nil)
		if err != nil {
			return content{}, err
		}
		tail = rest
		switch {
		case at < 0 && blocks == nil:
			for i := int64(0); i < off; i += chunk {
				blocks = append(blocks, uint32((start+i)/BlockSize))
			}
			blocks = append(blocks, nullBlock)
		case at < 0:
			blocks = append(blocks, nullBlock)
		case blocks != nil:
			blocks = append(blocks, uint32(at/BlockSize))
		}
	}
	if w.out.next/BlockSize > maxBlocks {
		return content{}, fault.New(fault.Invalid, "image of more than %d blocks: the format has no larger ones", int64(maxBlocks))
	}
	switch {
	case blocks != nil:
		c := content{layout: layoutChunks, union: uint32(bits.TrailingZeros64(uint64(chunk / BlockSize)))}
		for _, b := range blocks {
			c.chunks = binary.LittleEndian.AppendUint32(c.chunks, b)
		}
		return c, nil
	case len(tail) > 0:
		return content{layout: layoutInline, union: blockOf(start, w.out.next), tail: tail}, nil
	}
	return content{layout: layoutPlain, union: blockOf(start, w.out.next)}, nil
}

// blockOf returns the block at start, or 0 if nothing was reserved there.
func blockOf(start, end int64) uint32 {
	if start == end {
		return 0
	}
	return uint32(start / BlockSize)
}

// copyChunk copies the chunk of a file at off and returns its offset in the image, or
// -1 if it is zeros and was left out. Its last inline bytes are returned and not
// written. What is less than a block is left out only if sparse, in a file that
// has a chunk map anyway.
func (w *contentWriter) copyChunk(r io.Reader, off, length, inline int64, sparse bool) (at int64, tail []byte, err error) {
	at = -1
	for done := int64(0); done < length; {
		here := done
		b := w.buf[:min(int64(len(w.buf)), length-done)]
		zero, err := w.read(r, off+done, b)
		if err != nil {
			return 0, nil, err
		}
		done += int64(len(b))
		if zero && (sparse || length > BlockSize) {
			continue // the sink reads as zeros where nothing is written
		}
		w.sum = crc32.Update(w.sum, castagnoli, b)
		if at < 0 {
			at = w.out.reserve(length - inline)
		}
		if done == length {
			cut := int64(len(b)) - inline
			tail = append([]byte(nil), b[cut:]...)
			b = b[:cut]
		}
		w.out.write(at+here, b)
	}
	if at >= 0 && tail == nil && inline > 0 {
		tail = make([]byte, inline)
	}
	return at, tail, nil
}

// holed is a content that knows where it has holes.
type holed interface {
	// skipHole goes past the n bytes at off if they are in a hole.
	skipHole(off, n int64) bool
}

// read fills b with what is at off, and tells whether it is all zeros.
func (w *contentWriter) read(r io.Reader, off int64, b []byte) (zero bool, err error) {
	if h, ok := r.(holed); ok && len(b) > BlockSize && h.skipHole(off, int64(len(b))) {
		clear(b)
		return true, nil
	}
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fault.New(fault.Conflict, "content ends at byte %d: it was changed while it was read", off+int64(n))
	}
	return err == nil && bytes.Equal(b, zeros[:len(b)]), err
}
