package durable

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/machine"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/durable/upper"
	"github.com/sandtree/sandtree/internal/fault"
)

// forger makes exports that no writer would make, with all checksums right.
type forger struct {
	t   testing.TB
	out bytes.Buffer
	e   *exporter
}

func newForger(t testing.TB) *forger {
	f := &forger{t: t}
	f.e = &exporter{w: &f.out, sum: sha256.New()}
	f.must(f.e.put(binary.BigEndian.AppendUint32([]byte(exportMagic), formatVersion)))
	return f
}

func (f *forger) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// chunk adds a chunk of a value's encoding.
func (f *forger) chunk(v any) chunk.ID {
	b, ok := v.([]byte)
	if !ok {
		var err error
		b, err = cbor.Marshal(v)
		f.must(err)
	}
	id := chunk.Sum(b)
	f.e.chunks++
	f.must(f.e.frame(frameChunk, id[:], binary.BigEndian.AppendUint32(nil, uint32(len(b))), chunk.Encode(nil, b)))
	return id
}

func (f *forger) record(change func(*record)) {
	here, err := machine.Here()
	f.must(err)
	r := &record{Info: Info{ID: "a", Created: time.Unix(1, 0).UTC(), Machine: here}}
	change(r)
	b, err := r.encode()
	f.must(err)
	f.e.records++
	f.must(f.e.frame(frameRecord, b))
}

func (f *forger) end() []byte {
	f.must(f.e.end())
	return f.out.Bytes()
}

// tree makes a file delta of entries.
func (f *forger) tree(entries ...upper.Entry) *upper.Manifest {
	return &upper.Manifest{Segments: []chunk.ID{f.chunk(entries)}, Entries: int64(len(entries))}
}

// TestHostileExports: each is refused, says why, and nothing of it is kept.
func TestHostileExports(t *testing.T) {
	const dir, file = 0o040755, 0o100644
	root := upper.Entry{Ino: 1, Mode: dir}
	empty := &content.Content{}
	cases := map[string]struct {
		make func(*forger)
		want string
		kind fault.Kind
	}{
		"an id that is a path": {func(f *forger) { f.record(func(r *record) { r.Info.ID = "../../etc/passwd" }) }, "is not an id", ""},
		"a parent that is one": {func(f *forger) { f.record(func(r *record) { r.Info.Parent = "/x" }) }, "is not an id", ""},
		"its own parent":       {func(f *forger) { f.record(func(r *record) { r.Info.Parent = "a" }) }, "descends from itself", ""},
		"parents in a circle": {func(f *forger) {
			f.record(func(r *record) { r.Info.Parent = "b" })
			f.record(func(r *record) { r.Info.ID, r.Info.Parent = "b", "a" })
		}, "descends from itself", ""},
		"the same record twice": {func(f *forger) {
			f.record(func(*record) {})
			f.record(func(*record) {})
		}, "twice", ""},
		"the same chunk twice": {func(f *forger) {
			f.chunk([]byte("x"))
			f.chunk([]byte("x"))
		}, "twice", ""},
		"a chunk of another name": {func(f *forger) {
			id := chunk.Sum([]byte("other"))
			f.e.chunks++
			f.must(f.e.frame(frameChunk, id[:], []byte{0, 0, 0, 1}, []byte("x")))
		}, "another checksum", ""},
		"a bomb": {func(f *forger) {
			stored := chunk.Encode(nil, make([]byte, chunk.Max))
			id := chunk.Sum(make([]byte, chunk.Max))
			f.e.chunks++
			f.must(f.e.frame(frameChunk, id[:], binary.BigEndian.AppendUint32(nil, 4096), stored))
		}, "corrupt chunk", ""},
		"a chunk that only the repository has": {func(f *forger) {
			f.record(func(r *record) {
				r.Sections = map[string]content.Content{"x": {Size: 6, Extents: []content.Extent{{Len: 6, ID: chunk.Sum([]byte("secret"))}}}}
			})
		}, "is not in it", ""},
		"more memory than is allowed": {func(f *forger) { f.record(func(r *record) { r.Info.MemoryBytes = 1 << 40 }) }, "more than", ""},
		"more memory than it says": {func(f *forger) {
			page := f.chunk(make([]byte, pages.PageSize))
			windows := make([]pages.Window, 1024)
			for i := range windows {
				windows[i] = pages.Window{N: uint64(i), Parts: []pages.Part{{ID: page, Has: 1}}}
			}
			table := f.chunk(windows)
			f.record(func(r *record) { r.Memory = []pages.Memory{{PID: 2, Bytes: 4096, Tables: []pages.Table{{ID: table}}}} })
		}, "bytes of memory", ""},
		"a table in a place of another": {func(f *forger) {
			table := f.chunk([]pages.Window{{N: 5000, Zero: 1}})
			f.record(func(r *record) { r.Memory = []pages.Memory{{PID: 2, Bytes: 4096, Tables: []pages.Table{{ID: table}}}} })
		}, "window 5000", ""},
		"a page twice": {func(f *forger) {
			page := f.chunk(make([]byte, pages.PageSize))
			table := f.chunk([]pages.Window{{N: 1, Zero: 1, Parts: []pages.Part{{ID: page, Has: 1}}}})
			f.record(func(r *record) { r.Memory = []pages.Memory{{PID: 2, Bytes: 4096, Tables: []pages.Table{{ID: table}}}} })
		}, "part 0", ""},
		"overlapping content": {func(f *forger) {
			c := f.chunk([]byte("xx"))
			f.record(func(r *record) {
				r.Sections = map[string]content.Content{"x": {Size: 9, Extents: []content.Extent{{At: 4, Len: 2, ID: c}, {At: 5, Len: 2, ID: c}}}}
			})
		}, "after 6", ""},
		"a file above the root": {func(f *forger) {
			f.record(func(r *record) {
				r.Upper = f.tree(root, upper.Entry{Ino: 2, Dir: 1, Name: "..", Mode: dir})
			})
		}, "no name", ""},
		"a path for a name": {func(f *forger) {
			f.record(func(r *record) {
				r.Upper = f.tree(root, upper.Entry{Ino: 2, Dir: 1, Name: "a/b", Mode: file, Content: empty})
			})
		}, "no name", ""},
		"a file below a link": {func(f *forger) {
			f.record(func(r *record) {
				r.Upper = f.tree(root, upper.Entry{Ino: 2, Dir: 1, Name: "l", Mode: 0o120777, Link: "/etc"}, upper.Entry{Ino: 3, Dir: 2, Name: "f", Mode: file, Content: empty})
			})
		}, "not there", ""},
		"a directory in itself": {func(f *forger) {
			f.record(func(r *record) { r.Upper = f.tree(root, upper.Entry{Ino: 1, Dir: 1, Name: "d", Mode: dir}) })
		}, "is file 1", ""},
		"a second name of a directory": {func(f *forger) {
			f.record(func(r *record) { r.Upper = f.tree(root, upper.Entry{Ino: 1, Dir: 1, Name: "d", Again: true}) })
		}, "is file 1", ""},
		"an owner outside": {func(f *forger) {
			f.record(func(r *record) { r.Upper = f.tree(upper.Entry{Ino: 1, Mode: dir, UID: 1 << 20}) })
		}, "owned by", ""},
		"another machine": {func(f *forger) {
			f.record(func(r *record) {
				r.Info.Machine.Kernel, r.Info.Machine.Features = "5.4.0", append([]string{"avx9000"}, r.Info.Machine.Features...)
			})
		}, "avx9000", fault.Unsupported},
		"a newer record": {func(f *forger) {
			body, err := cbor.Marshal(map[string]any{"Info": map[string]any{"ID": "a"}, "Later": 1})
			f.must(err)
			f.e.records++
			f.must(f.e.frame(frameRecord, seal(body)))
		}, "does not know", fault.Unsupported},
	}
	dir2 := filepath.Join(t.TempDir(), "r")
	r, err := Open(dir2, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	secret := Checkpoint{ID: "secret", Upper: -1, Sections: map[string]any{"x": bytes.Repeat([]byte("secret"), 200)}}
	if _, err := r.Write(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for what, c := range cases {
		f := newForger(t)
		c.make(f)
		stream := f.end()
		if c.kind == "" {
			c.kind = fault.Invalid
		}
		_, err := r.Import(t.Context(), bytes.NewReader(stream), ImportOptions{MaxBytes: 1 << 30})
		if !fault.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s: %v (%s), want %q", what, err, fault.KindOf(err), c.want)
		}
		if list, err := r.List(context.Background()); err != nil || len(list) != 1 {
			t.Fatalf("%s: %d records, %v", what, len(list), err)
		}
		if entries, err := os.ReadDir(filepath.Join(dir2, "packs")); err != nil || len(entries) != 1 {
			t.Fatalf("%s: packs %v, %v", what, entries, err)
		}
	}
}

// TestNewerFormats are refused by their version, which the error names.
func TestNewerFormats(t *testing.T) {
	r := &record{Info: Info{ID: "a"}}
	b, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint32(b[len(recordMagic):], formatVersion+1)
	sum := sha256.Sum256(b[:len(b)-sha256.Size])
	copy(b[len(b)-sha256.Size:], sum[:])
	if _, err := decodeRecord(b); !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
	dir := filepath.Join(t.TempDir(), "r")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, formatFile), []byte("sandtree repository 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !fault.Is(err, fault.Unsupported) {
		t.Errorf("%v", err)
	}
	export := binary.BigEndian.AppendUint32([]byte(exportMagic), formatVersion+1)
	if _, _, err := VerifyExport(t.Context(), bytes.NewReader(export)); !fault.Is(err, fault.Unsupported) {
		t.Errorf("%v", err)
	}
}
