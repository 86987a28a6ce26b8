package erofs

import "io"

// Sink is where an image is written: an empty file. It is read for the first
// block alone. Bytes that are never written must read as zeros.
type Sink interface {
	io.WriterAt
	io.ReaderAt
	Truncate(size int64) error
}

// output hands out blocks at the end of the image, for data and for metadata
// segments, and gathers neighbouring writes.
type output struct {
	sink  Sink
	next  int64  // first byte not handed out, a multiple of BlockSize
	batch []byte // not yet written, for byte at
	at    int64
	err   error // the first failure; later writes do nothing
}

// batchSize is how many bytes are gathered before they are written.
const batchSize = 1 << 20

// reserve hands out size bytes, rounded up to blocks, and returns the offset.
func (o *output) reserve(size int64) int64 {
	at := o.next
	o.next += (size + BlockSize - 1) &^ (BlockSize - 1)
	return at
}

// write puts b at an offset that was reserved.
func (o *output) write(off int64, b []byte) {
	if o.at+int64(len(o.batch)) != off || len(o.batch)+len(b) > batchSize {
		o.flush()
		o.at = off
	}
	o.batch = append(o.batch, b...)
}

// flush writes what is gathered.
func (o *output) flush() {
	if len(o.batch) > 0 && o.err == nil {
		_, o.err = o.sink.WriteAt(o.batch, o.at)
	}
	o.batch = o.batch[:0]
}

// segment is a run of metadata blocks that inodes are placed in.
type segment struct {
	start, pos, end int64
	buf             []byte // the segment's bytes up to the last that is filled in
}

// Segments start small, so that small images are, and grow so that the
// inodes of a large one lie close together.
const (
	firstSegment = 4 * BlockSize
	largeSegment = 64 * BlockSize
)

// place finds room for an inode of head bytes (itself, xattrs, chunk map) and
// tail bytes of inline data behind them, and returns the offset. Neither the
// inode itself nor its inline data may cross a block's border.
func (s *segment) place(o *output, head, tail int64) int64 {
	pos := (s.pos + slotSize - 1) &^ (slotSize - 1)
	room := BlockSize - pos%BlockSize
	if (tail > 0 && head+tail > room) || room < inodeSize {
		pos += room
	}
	if pos+head+tail > s.end {
		s.flush(o)
		size := min(max(2*(s.end-s.start), firstSegment), largeSegment)
		size = max(size, (head+tail+BlockSize-1)&^(BlockSize-1))
		s.start = o.reserve(size)
		s.end = s.start + size
		pos = s.start
	}
	s.pos = pos + head + tail
	return pos
}

// put fills in what was placed last at off.
func (s *segment) put(off int64, b []byte) {
	if gap := off - s.start - int64(len(s.buf)); gap > 0 {
		s.buf = append(s.buf, make([]byte, gap)...)
	}
	s.buf = append(s.buf, b...)
}

// flush writes the segment. Directories' inodes in it are still empty.
func (s *segment) flush(o *output) {
	if len(s.buf) > 0 {
		o.flush()
		o.write(s.start, s.buf)
		o.flush()
	}
	s.buf = s.buf[:0]
}

// trim gives back the blocks at the segment's end that hold nothing, if
// nothing was reserved behind them.
func (s *segment) trim(o *output) {
	if s.end == o.next {
		o.next = (s.pos + BlockSize - 1) &^ (BlockSize - 1)
	}
}
