package durable

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/durable/cbor"
)

// goldenRecords are records as files have them.
func goldenRecords(f *testing.F) (out [][]byte) {
	f.Helper()
	paths, err := filepath.Glob("testdata/v*/records/*")
	if err != nil || len(paths) == 0 {
		f.Fatal(paths, err)
	}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// seal makes a record's file of a body.
func seal(body []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte(recordMagic), formatVersion)
	b = append(b, 4, 't', 'e', 's', 't')
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

// FuzzRecord gives bodies with the right checksum around them: one that is taken
// is what would be written.
func FuzzRecord(f *testing.F) {
	for _, b := range goldenRecords(f) {
		rec, err := decodeRecord(b)
		if err != nil {
			f.Fatal(err)
		}
		body, err := cbor.Marshal(rec)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		rec, err := decodeRecord(seal(body))
		if err != nil {
			return
		}
		again, err := cbor.Marshal(rec)
		if err != nil || !bytes.Equal(again, body) {
			t.Errorf("%x became %x, %v", body, again, err)
		}
	})
}

// FuzzRecordFile gives whole files.
func FuzzRecordFile(f *testing.F) {
	for _, b := range goldenRecords(f) {
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = decodeRecord(b) })
}

// FuzzExport gives frames with the right end behind them.
func FuzzExport(f *testing.F) {
	b, err := os.ReadFile("testdata/v1.export")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[len(exportMagic)+4 : len(b)-frameHead-endSize])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frames []byte) {
		var out bytes.Buffer
		e := &exporter{w: &out, sum: sha256.New()}
		if err := e.put(binary.BigEndian.AppendUint32([]byte(exportMagic), formatVersion)); err != nil {
			t.Fatal(err)
		}
		for rest := frames; len(rest) >= frameHead && uint64(binary.BigEndian.Uint32(rest[1:])) <= uint64(len(rest)-frameHead); {
			if rest[0] == frameChunk {
				e.chunks++
			} else {
				e.records++
			}
			rest = rest[frameHead+int(binary.BigEndian.Uint32(rest[1:])):]
		}
		if err := e.put(frames); err != nil {
			t.Fatal(err)
		}
		if err := e.end(); err != nil {
			t.Fatal(err)
		}
		s, err := scan(&out)
		if err != nil {
			t.Fatal(err)
		}
		in := &incoming{o: ImportOptions{MaxBytes: 64 << 20}}
		for n := 0; ; n++ {
			kind, body, err := s.next()
			if err != nil {
				return
			}
			switch kind {
			case frameEnd:
				return
			case frameRecord:
				if rec, err := decodeRecord(body); err == nil {
					in.records = append(in.records, rec)
				}
			}
			if n > len(frames) {
				t.Fatal("it does not end")
			}
		}
	})
}

// FuzzVerifyExport gives whole streams.
func FuzzVerifyExport(f *testing.F) {
	b, err := os.ReadFile("testdata/v1.export")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _, _ = VerifyExport(context.Background(), bytes.NewReader(b))
	})
}
