package oci

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/sandtree/sandtree/internal/fault"
)

// zstdMemory bounds the window of a zstd stream, in bytes: what `zstd --ultra
// --long` makes by default.
const zstdMemory = 128 << 20

var (
	gzipMagic  = []byte{0x1f, 0x8b}
	zstdMagic  = []byte{0x28, 0xb5, 0x2f, 0xfd}
	bzip2Magic = []byte("BZh")
	xzMagic    = []byte("\xfd7zXZ\x00")
)

// stream is a tar stream out of stored bytes.
type stream struct {
	stored *checked // as they are stored
	tar    *checked // as they come out
	end    func()   // frees the decompressor
	raw    io.Closer
}

// newStream takes over raw and closes it also on an error.
func newStream(raw io.ReadCloser, digest, diffID v1.Hash, read func(int)) (*stream, error) {
	stored := &checked{r: raw, what: "stored layer", want: digest, read: read}
	r, end, err := decompress(stored)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return &stream{stored: stored, tar: &checked{r: r, what: "layer", want: diffID}, end: end, raw: raw}, nil
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.tar.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		// What stands behind the compressed stream belongs to the digest.
		if _, derr := io.Copy(io.Discard, s.stored); derr != nil {
			return n, derr
		}
	case s.stored.err != nil && !errors.Is(s.stored.err, io.EOF):
		return n, s.stored.err // not the compression's fault
	}
	return n, err
}

func (s *stream) Close() error {
	s.end()
	return s.raw.Close()
}

// decompress finds the compression by the first bytes. end frees what the
// decompressor holds.
func decompress(r io.Reader) (out io.Reader, end func(), err error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, err := b.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, nil, invalid("damaged gzip", err)
		}
		return damaged{z, "gzip"}, func() {}, nil
	case bytes.HasPrefix(head, zstdMagic):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdMemory))
		if err != nil {
			return nil, nil, invalid("damaged zstd", err)
		}
		return damaged{z, "zstd"}, z.Close, nil
	case bytes.HasPrefix(head, xzMagic), bytes.HasPrefix(head, bzip2Magic):
		return nil, nil, fault.New(fault.Invalid, "compressed with xz or bzip2").WithHint("decompress it first, or use gzip or zstd")
	}
	return b, func() {}, nil
}

// damaged gives errors of a decompressor a kind.
type damaged struct {
	r    io.Reader
	name string
}

func (d damaged) Read(p []byte) (int, error) {
	n, err := d.r.Read(p)
	var f *fault.Error
	switch {
	case err == nil, errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &f):
		return n, err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, invalid("truncated "+d.name, err)
	}
	return n, invalid("damaged "+d.name, err)
}

// checked is a stream whose digest is compared at its end.
type checked struct {
	r    io.Reader
	what string
	want v1.Hash // zero: not checked
	read func(int)
	h    hash.Hash
	err  error // how it ended
}

func (c *checked) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p)
	if c.read != nil && n > 0 {
		c.read(n)
	}
	if c.want != (v1.Hash{}) {
		if c.h == nil {
			c.h = sha256.New()
		}
		c.h.Write(p[:n])
		if err == io.EOF {
			if got := hex.EncodeToString(c.h.Sum(nil)); got != c.want.Hex {
				err = fault.New(fault.Invalid, "%s: its digest is sha256:%s, not %s: it is damaged or truncated", c.what, got, c.want)
			}
		}
	}
	c.err = err
	return n, err
}
