// Package pack writes and reads pack files: many chunks in one file, so that
// keeping them is one write to a disk and one fsync.
//
//	header   "stpack" 0 1              8 bytes; the last is the version
//	chunks   stored forms, one behind the other
//	index    for each chunk, in that order: name (32 bytes), stored length, length (4 bytes each)
//	footer   number of chunks (4 bytes), SHA-256 of header, index and number (32 bytes), "stpkend" 1
//
// Numbers are big endian. A pack file is named by the checksum in its footer,
// in hexadecimal, with ".pack" behind. It never changes.
package pack

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sandtree/sandtree/internal/durable/chunk"
)

const (
	header     = "stpack\x00\x01"
	trailer    = "stpkend\x01"
	entrySize  = sha256.Size + 4 + 4
	footerSize = 4 + sha256.Size + len(trailer)
	suffix     = ".pack"

	// MaxChunks is the most chunks that a pack holds.
	MaxChunks = 1 << 16
)

// ErrCorrupt is in the chain of errors about a file that is no whole pack.
var ErrCorrupt = errors.New("corrupt pack")

// Entry says where a chunk is in a pack.
type Entry struct {
	ID             chunk.ID
	Offset         int64 // of the stored form, in the file
	Stored, Length uint32
}

// Writer writes one pack.
type Writer struct {
	w       io.Writer
	at      int64
	index   []byte
	entries []Entry
}

// NewWriter begins a pack.
func NewWriter(w io.Writer) (*Writer, error) {
	p := &Writer{w: w}
	return p, p.write([]byte(header))
}

func (p *Writer) write(b []byte) error {
	n, err := p.w.Write(b)
	p.at += int64(n)
	return err
}

// Add appends a chunk in its stored form. After an error the pack is of no use.
func (p *Writer) Add(id chunk.ID, stored []byte, length int) error {
	p.entries = append(p.entries, Entry{id, p.at, uint32(len(stored)), uint32(length)})
	p.index = append(p.index, id[:]...)
	p.index = binary.BigEndian.AppendUint32(p.index, uint32(len(stored)))
	p.index = binary.BigEndian.AppendUint32(p.index, uint32(length))
	return p.write(stored)
}

// Size is the length of the file, if it was finished now; Chunks the number of
// chunks in it.
func (p *Writer) Size() int64 { return p.at + int64(len(p.index)+footerSize) }

// Chunks is the number of chunks in the pack.
func (p *Writer) Chunks() int { return len(p.entries) }

// Finish writes the index and returns the file's name.
func (p *Writer) Finish() (name string, err error) {
	tail := binary.BigEndian.AppendUint32(p.index, uint32(len(p.entries)))
	sum := sumOf(tail)
	tail = append(append(tail, sum[:]...), trailer...)
	if err := p.write(tail); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum[:]) + suffix, nil
}

// Entries are the chunks in the pack. They are not copied.
func (p *Writer) Entries() []Entry { return p.entries }

func sumOf(indexAndNumber []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write([]byte(header))
	h.Write(indexAndNumber)
	h.Sum(sum[:0])
	return sum
}

// IsName reports whether a file's name is one of a pack.
func IsName(name string) bool {
	hexa, ok := strings.CutSuffix(name, suffix)
	return ok && len(hexa) == 2*sha256.Size && strings.Trim(hexa, "0123456789abcdef") == ""
}

// ReadIndex reads what is in a pack of a size and name. The chunks themselves
// are not looked at: each is checked when it is read.
func ReadIndex(f io.ReaderAt, size int64, name string) ([]Entry, error) {
	if size < int64(len(header)+footerSize) {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrCorrupt, size)
	}
	head, foot := make([]byte, len(header)), make([]byte, footerSize)
	if err := readAt(f, head, 0); err != nil {
		return nil, err
	}
	if err := readAt(f, foot, size-int64(footerSize)); err != nil {
		return nil, err
	}
	if string(head) != header || string(foot[4+sha256.Size:]) != trailer {
		return nil, fmt.Errorf("%w: it does not begin or end like one", ErrCorrupt)
	}
	n := int64(binary.BigEndian.Uint32(foot))
	if n > MaxChunks || int64(len(header)+footerSize)+n*entrySize > size {
		return nil, fmt.Errorf("%w: %d chunks in %d bytes", ErrCorrupt, n, size)
	}
	end := size - int64(footerSize) - n*entrySize // of the chunks
	index := make([]byte, n*entrySize+4)
	if err := readAt(f, index, end); err != nil {
		return nil, err
	}
	sum := sumOf(index)
	if string(sum[:]) != string(foot[4:4+sha256.Size]) || name != hex.EncodeToString(sum[:])+suffix {
		return nil, fmt.Errorf("%w: the index has another checksum", ErrCorrupt)
	}
	entries := make([]Entry, n)
	at := int64(len(header))
	for i := range entries {
		e, b := &entries[i], index[i*entrySize:]
		copy(e.ID[:], b)
		e.Offset = at
		e.Stored, e.Length = binary.BigEndian.Uint32(b[sha256.Size:]), binary.BigEndian.Uint32(b[sha256.Size+4:])
		if err := chunk.Check(int64(e.Stored), int64(e.Length)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		at += int64(e.Stored)
	}
	if at != end {
		return nil, fmt.Errorf("%w: its chunks end at %d, not %d", ErrCorrupt, at, end)
	}
	return entries, nil
}

// Read appends a chunk to dst, checked. buf is used for its stored form, if it
// is large enough.
func Read(f io.ReaderAt, e Entry, dst, buf []byte) ([]byte, error) {
	if cap(buf) < int(e.Stored) {
		buf = make([]byte, e.Stored)
	}
	buf = buf[:e.Stored]
	if err := readAt(f, buf, e.Offset); err != nil {
		return dst, err
	}
	return chunk.Decode(dst, buf, e.ID, int(e.Length))
}

func readAt(f io.ReaderAt, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends early", ErrCorrupt)
	}
	return err
}
