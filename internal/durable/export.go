package durable

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/fault"
)

// An export is a stream:
//
//	"stexport", version (4 bytes)
//	frames: kind (1 byte), length of the rest (4 bytes), the rest
//
// with the kinds
//
//	'c'  a chunk: name (32 bytes), length (4 bytes), stored form
//	'r'  a record, as in its file
//	'e'  the end: numbers of chunks and records (8 bytes each), SHA-256 of all before this frame's checksum
//
// What a record refers to stands before it. Each chunk is there once.
const (
	exportMagic = "stexport"

	frameChunk  = 'c'
	frameRecord = 'r'
	frameEnd    = 'e'

	frameHead = 5
	endSize   = 8 + 8 + sha256.Size
)

// ExportOptions says what of records is told otherwise.
type ExportOptions struct {
	// Parents are those that records have by now, by id: what they were written with may be
	// gone. A record that is not named keeps its own.
	Parents map[string]string
}

// Export writes records (all, if none is named), with all that they refer to, as
// one stream. Parents that are not among them are not needed to import it.
func (r *Repository) Export(ctx context.Context, w io.Writer, o ExportOptions, ids ...string) error {
	if err := r.export(ctx, w, o, ids); err != nil {
		return disk.Errorf("export: %w", err)
	}
	return nil
}

func (r *Repository) export(ctx context.Context, w io.Writer, o ExportOptions, ids []string) error {
	l, err := r.chunks.Lease()
	if err != nil {
		return err
	}
	defer func() { _ = l.Release() }()
	infos, err := r.List(ctx)
	if err != nil && len(ids) == 0 {
		return err
	}
	if len(ids) == 0 {
		for _, i := range infos {
			ids = append(ids, i.ID)
		}
	}
	buf := bufio.NewWriterSize(w, 256<<10)
	e := &exporter{r: r, o: o, w: buf, sum: sha256.New(), sent: map[chunk.ID]bool{}, entered: map[reference]bool{}}
	if err := e.put(binary.BigEndian.AppendUint32([]byte(exportMagic), formatVersion)); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		if err := e.record(ctx, id); err != nil {
			return fmt.Errorf("record %s: %w", id, err)
		}
	}
	if err := e.end(); err != nil {
		return err
	}
	return buf.Flush()
}

type exporter struct {
	r               *Repository
	o               ExportOptions
	w               io.Writer
	sum             hash.Hash
	sent            map[chunk.ID]bool
	entered         map[reference]bool
	chunks, records uint64
	buf, stored     []byte
}

func (e *exporter) put(b []byte) error {
	e.sum.Write(b)
	_, err := e.w.Write(b)
	return err
}

func (e *exporter) frame(kind byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if err := e.put(binary.BigEndian.AppendUint32([]byte{kind}, uint32(n))); err != nil {
		return err
	}
	for _, p := range parts {
		if err := e.put(p); err != nil {
			return err
		}
	}
	return nil
}

func (e *exporter) record(ctx context.Context, id string) error {
	rec, err := e.r.load(id)
	if err != nil {
		return err
	}
	err = rec.walk(e.r.chunks, references{
		enter: func(part string, id chunk.ID) bool {
			ref := reference{part, id}
			first := !e.entered[ref]
			e.entered[ref] = true
			return first
		},
		chunk: func(id chunk.ID, _ int) error {
			if err := ctx.Err(); err != nil {
				return fault.New(fault.Canceled, "%w", err)
			}
			return e.chunk(id)
		},
	})
	if err != nil {
		return err
	}
	if parent, ok := e.o.Parents[id]; ok {
		rec.Info.Parent = parent
	}
	b, err := rec.encode()
	if err != nil {
		return err
	}
	e.records++
	return e.frame(frameRecord, b)
}

// chunk sends a chunk once. It is compressed anew, as reading it has checked it.
func (e *exporter) chunk(id chunk.ID) error {
	if e.sent[id] {
		return nil
	}
	e.sent[id] = true
	var err error
	if e.buf, err = e.r.chunks.Append(e.buf[:0], id); err != nil {
		return err
	}
	e.stored = chunk.Encode(e.stored[:0], e.buf)
	e.chunks++
	return e.frame(frameChunk, id[:], binary.BigEndian.AppendUint32(nil, uint32(len(e.buf))), e.stored)
}

func (e *exporter) end() error {
	b := binary.BigEndian.AppendUint32([]byte{frameEnd}, endSize)
	b = binary.BigEndian.AppendUint64(b, e.chunks)
	b = binary.BigEndian.AppendUint64(b, e.records)
	if err := e.put(b); err != nil {
		return err
	}
	return e.put(e.sum.Sum(nil))
}

// errExport is in the chain of errors about a stream that is no whole export.
var errExport = errors.New("not a whole export")

// scanner reads an export.
type scanner struct {
	r               *bufio.Reader
	sum             hash.Hash
	buf             []byte
	chunks, records uint64
}

// maxFrame bounds the length of a frame.
const maxFrame = maxRecord + 1024

// scan begins to read an export.
func scan(from io.Reader) (*scanner, error) {
	s := &scanner{r: bufio.NewReaderSize(from, 256<<10), sum: sha256.New()}
	head := make([]byte, len(exportMagic)+4)
	if err := s.read(head); err != nil {
		return nil, err
	}
	if string(head[:len(exportMagic)]) != exportMagic {
		return nil, fmt.Errorf("%w: it does not begin like one", errExport)
	}
	if v := binary.BigEndian.Uint32(head[len(exportMagic):]); v == 0 || v > formatVersion {
		return nil, fault.New(fault.Unsupported, "it has format %d, and this version reads up to %d", v, formatVersion)
	}
	return s, nil
}

func (s *scanner) read(b []byte) error {
	_, err := io.ReadFull(s.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends early", errExport)
	}
	s.sum.Write(b)
	return err
}

// next reads a frame; its body is valid until the next call. The end frame was
// checked, and nothing comes behind it.
func (s *scanner) next() (kind byte, body []byte, err error) {
	head := make([]byte, frameHead)
	if err := s.read(head); err != nil {
		return 0, nil, err
	}
	kind = head[0]
	n := int64(binary.BigEndian.Uint32(head[1:]))
	switch {
	case kind == frameChunk && n > sha256.Size+4 && n <= sha256.Size+4+chunk.Max:
	case kind == frameRecord && n <= maxFrame:
	case kind == frameEnd && n == endSize:
		return kind, nil, s.end()
	default:
		return 0, nil, fmt.Errorf("%w: a frame of kind %q with %d bytes", errExport, kind, n)
	}
	// It grows with what comes, not with what is promised.
	s.buf = s.buf[:0]
	for int64(len(s.buf)) < n {
		at := len(s.buf)
		s.buf = slices.Grow(s.buf, int(min(n-int64(at), 1<<20)))[:at+int(min(n-int64(at), 1<<20))]
		if err := s.read(s.buf[at:]); err != nil {
			return 0, nil, err
		}
	}
	if kind == frameChunk {
		s.chunks++
	} else {
		s.records++
	}
	return kind, s.buf, nil
}

func (s *scanner) end() error {
	b := make([]byte, 16)
	if err := s.read(b); err != nil {
		return err
	}
	want := s.sum.Sum(nil)
	sum := make([]byte, sha256.Size)
	if err := s.read(sum); err != nil {
		return err
	}
	switch {
	case string(sum) != string(want):
		return fmt.Errorf("%w: its bytes have another checksum", errExport)
	case binary.BigEndian.Uint64(b) != s.chunks || binary.BigEndian.Uint64(b[8:]) != s.records:
		return fmt.Errorf("%w: it has %d chunks and %d records, not those that it says", errExport, s.chunks, s.records)
	}
	if n, err := s.r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: something comes behind its end", errExport)
	}
	return nil
}
