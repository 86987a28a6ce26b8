package durable

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/durable/upper"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/version"
)

// formatVersion is the version of all formats together. A reader takes those of
// its own version and older.
const formatVersion = 1

// record is what a record file holds.
type record struct {
	Info Info
	// Tree is an envelope of *image.Tree.
	Tree   *content.Content
	Memory []pages.Memory
	Upper  *upper.Manifest
	// Sections are envelopes.
	Sections map[string]content.Content
}

const (
	recordMagic = "strecord"
	// maxRecord bounds a record file; the large parts of a record are chunks.
	maxRecord = 64 << 20
)

// errCorrupt is in the chain of errors about a record that is not what it was.
var errCorrupt = errors.New("corrupt record")

// encode makes the bytes of a record's file:
//
//	"strecord", version (4 bytes), length of the writer's version (1 byte), writer's version,
//	length of the body (4 bytes), body in CBOR, SHA-256 of all before
func (r *record) encode() ([]byte, error) {
	body, err := cbor.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(body) > maxRecord {
		return nil, fault.New(fault.Exhausted, "the record has %d bytes", len(body))
	}
	writer := version.String()
	writer = writer[:min(len(writer), math.MaxUint8)]
	b := binary.BigEndian.AppendUint32([]byte(recordMagic), formatVersion)
	b = append(append(b, byte(len(writer))), writer...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...), nil
}

// decodeRecord reads a record. One of a newer version is Unsupported.
func decodeRecord(b []byte) (*record, error) {
	const fixed = len(recordMagic) + 4 + 1 + 4 + sha256.Size
	if len(b) < fixed || string(b[:len(recordMagic)]) != recordMagic {
		return nil, fmt.Errorf("%w: it does not begin like one", errCorrupt)
	}
	rest := b[len(recordMagic):]
	v, n := binary.BigEndian.Uint32(rest), int(rest[4])
	rest = rest[5:]
	if len(rest) < n+4+sha256.Size {
		return nil, fmt.Errorf("%w: it ends early", errCorrupt)
	}
	writer, rest := string(rest[:n]), rest[n:]
	// The checksum stands at the end in every version.
	sum := sha256.Sum256(b[:len(b)-sha256.Size])
	if string(sum[:]) != string(b[len(b)-sha256.Size:]) {
		return nil, fmt.Errorf("%w: its bytes have another checksum", errCorrupt)
	}
	if v > formatVersion {
		return nil, newer(writer, fmt.Errorf("it has format %d, and this version reads up to %d", v, formatVersion))
	}
	body := rest[4 : len(rest)-sha256.Size]
	if int64(binary.BigEndian.Uint32(rest)) != int64(len(body)) || v == 0 {
		return nil, fmt.Errorf("%w: its length is wrong", errCorrupt)
	}
	r := &record{}
	if err := cbor.Unmarshal(body, r); err != nil {
		return nil, readable(writer, err)
	}
	return r, r.check()
}

// newer says that a record needs another version to be read.
func newer(writer string, err error) error {
	return fault.New(fault.Unsupported, "it was written by sandtree %.60s: %w", writer, err).
		WithHint("read it with that version, or a newer one")
}

// readable tells a value that this version does not know from a broken one.
func readable(writer string, err error) error {
	var unknown *cbor.UnknownFieldError
	switch {
	case errors.As(err, &unknown):
		return newer(writer, err)
	case errors.Is(err, cbor.ErrMalformed):
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return err
}

// check tells what no record can have.
func (r *record) check() error {
	if err := validID(r.Info.ID); err != nil {
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if r.Info.Parent != "" {
		if err := validID(r.Info.Parent); err != nil {
			return fmt.Errorf("%w: parent: %w", errCorrupt, err)
		}
	}
	last := -1
	for i := range r.Memory {
		m := &r.Memory[i]
		if m.PID <= last {
			return fmt.Errorf("%w: memory of process %d", errCorrupt, m.PID)
		}
		last = m.PID
		if err := m.Check(); err != nil {
			return err
		}
	}
	for name, c := range r.Sections {
		if err := c.Check(); err != nil {
			return fmt.Errorf("section %q: %w", name, err)
		}
	}
	if r.Tree != nil {
		if err := r.Tree.Check(); err != nil {
			return err
		}
	}
	if r.Upper != nil {
		return r.Upper.Check()
	}
	return nil
}

// memoryOf returns a process's memory, or nil.
func (r *record) memoryOf(pid int) *pages.Memory {
	if r == nil {
		return nil
	}
	for i := range r.Memory {
		if r.Memory[i].PID == pid {
			return &r.Memory[i]
		}
	}
	return nil
}

// maxID is the longest id of a record: file names have up to 255 bytes.
const maxID = 127

// validID refuses ids that could mean something to a path.
func validID(s string) error {
	ok := s != "" && len(s) <= maxID && s[0] != '.' && s[0] != '_' && s[0] != '-'
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	if !ok {
		return fault.New(fault.Invalid, "%.140q is not an id of a record", s)
	}
	return nil
}
