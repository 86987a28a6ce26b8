// Package chunk gives pieces of content their names and their stored form.
//
// A chunk is named by the SHA-256 of its bytes. It is stored as a zstd frame
// (RFC 8878) with the content's size in its header, or as it is where that is
// not longer: then the stored length is the chunk's own. So who knows both
// lengths and the name can read a chunk, and nothing that is stored wrong is
// taken for it.
package chunk

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Max is the length of the longest chunk.
const Max = 1 << 20

// ID is a chunk's name.
type ID [sha256.Size]byte

// Sum names a chunk.
func Sum(b []byte) ID { return sha256.Sum256(b) }

// String is the name in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Compare orders names.
func (id ID) Compare(o ID) int { return bytes.Compare(id[:], o[:]) }

// ErrCorrupt is in the chain of errors about a chunk that is not what its name
// says.
var ErrCorrupt = errors.New("corrupt chunk")

// encoders are of the fastest level: what compresses well does so there, and
// the writer is not to be slower than a disk.
var encoders = sync.Pool{New: func() any {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(Max), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are constant
	}
	return e
}}

var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(Max),
		zstd.WithDecoderMaxWindow(Max), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true), zstd.IgnoreChecksum(true))
	if err != nil {
		panic(err)
	}
	return d
}}

// Encode appends the stored form of a chunk to dst.
func Encode(dst, b []byte) []byte {
	e := encoders.Get().(*zstd.Encoder)
	defer encoders.Put(e)
	at := len(dst)
	dst = e.EncodeAll(b, dst)
	if len(dst)-at >= len(b) {
		dst = append(dst[:at], b...)
	}
	return dst
}

// Check tells what is wrong with lengths that no chunk can have.
func Check(stored, length int64) error {
	if length < 1 || length > Max || stored < 1 || stored > length {
		return fmt.Errorf("%w: %d bytes stored as %d", ErrCorrupt, length, stored)
	}
	return nil
}

// Decode appends to dst the chunk of a name and length, from its stored form.
// It takes no more memory than the length says, whatever is stored.
func Decode(dst, stored []byte, id ID, length int) ([]byte, error) {
	if err := Check(int64(len(stored)), int64(length)); err != nil {
		return dst, err
	}
	at := len(dst)
	if cap(dst)-at < length {
		dst = append(make([]byte, 0, at+length), dst...)
	}
	if len(stored) == length {
		dst = append(dst, stored...)
	} else {
		d := decoders.Get().(*zstd.Decoder)
		defer decoders.Put(d)
		out, err := d.DecodeAll(stored, dst[:at:at+length])
		if err != nil {
			return dst[:at], fmt.Errorf("%w %s: %w", ErrCorrupt, id, err)
		}
		dst = out
	}
	if len(dst)-at != length {
		return dst[:at], fmt.Errorf("%w %s: %d bytes, not %d", ErrCorrupt, id, len(dst)-at, length)
	}
	if Sum(dst[at:]) != id {
		return dst[:at], fmt.Errorf("%w %s: its bytes have another checksum", ErrCorrupt, id)
	}
	return dst, nil
}
