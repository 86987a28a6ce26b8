package tarball

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/sandtree/sandtree/internal/fault"
)

// Decompress returns a reader of what r holds, uncompressed if that was
// compressed with gzip or zstd, and whether it was. Closing it closes r.
func Decompress(r io.ReadCloser) (plain io.ReadCloser, compressed bool, err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil {
		return layered{b, r, nil}, false, nil // shorter than any tar: its reader says so
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, true, fault.New(fault.Invalid, "gzip: %w", err)
		}
		return layered{z, r, nil}, true, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, true, fault.New(fault.Invalid, "zstd: %w", err)
		}
		return layered{z, r, z.Close}, true, nil
	}
	return layered{b, r, nil}, false, nil
}

// layered reads from one thing and closes another.
type layered struct {
	io.Reader
	under io.Closer
	free  func()
}

func (l layered) Close() error {
	if l.free != nil {
		l.free()
	}
	return l.under.Close()
}
