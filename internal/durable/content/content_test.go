package content_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
)

// kept is a store of chunks in memory.
type kept struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
}

func newKept() *kept { return &kept{chunks: map[chunk.ID][]byte{}} }

func (k *kept) Put(b []byte) (chunk.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := chunk.Sum(b)
	k.chunks[id] = bytes.Clone(b)
	return id, nil
}

func (k *kept) Reuse(id chunk.ID) error {
	_, err := k.Append(nil, id)
	return err
}

func (k *kept) Append(dst []byte, id chunk.ID) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chunks[id] == nil {
		return dst, fmt.Errorf("%w: %s is not there", chunk.ErrCorrupt, id)
	}
	return append(dst, k.chunks[id]...), nil
}

func memfd(t failer) *os.File {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "test")
}

type failer interface{ Fatal(...any) }

// runs are where a file's data are.
func runs(t failer, f *os.File, size int64) (out [][2]int64) {
	for at := int64(0); at < size; {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, [2]int64{start, end})
		at = end
	}
	return out
}

// TestSparseFiles: files of any shape come back with their holes.
func TestSparseFiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f, g := memfd(t), memfd(t)
		defer f.Close()
		defer g.Close()
		size := rapid.SampledFrom([]int64{0, 1, 511, 512, 513, 4096, 200_000, content.Window, 3*content.Window + 1, 300 << 20}).Draw(t, "size")
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(0, 6).Draw(t, "writes") {
			b := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(1, 300_000).Draw(t, "length"))
			at := rapid.Int64Range(0, max(size-1, 0)).Draw(t, "at")
			if _, err := f.WriteAt(b[:min(int64(len(b)), size-at)], at); err != nil {
				t.Fatal(err)
			}
		}
		k := newKept()
		c, read, err := content.Write(k, int(f.Fd()), size)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		if err := c.Restore(t.Context(), k, int(g.Fd())); err != nil {
			t.Fatal(err)
		}
		var data int64
		want, got := runs(t, f, size), runs(t, g, size)
		for _, r := range want {
			a, b := make([]byte, min(r[1], size)-r[0]), make([]byte, min(r[1], size)-r[0])
			data += int64(len(a))
			if _, err := f.ReadAt(a, r[0]); err != nil {
				t.Fatal(err)
			}
			if _, err := g.ReadAt(b, r[0]); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a, b) {
				t.Fatalf("other bytes in %v", r)
			}
		}
		if st, _ := g.Stat(); fmt.Sprint(want) != fmt.Sprint(got) || st.Size() != size || read != data || c.Bytes() != data {
			t.Fatalf("%d bytes with data at %v became %d with %v; %d read, %d counted", size, want, st.Size(), got, read, c.Bytes())
		}
	})
}

// TestManyPieces: a large file's extents are in lists, of which a change costs
// one.
func TestManyPieces(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 1 << 30
	for at := int64(0); at < size; at += 1 << 20 {
		if _, err := fmt.Fprintf(&at1{f, at}, "%d", at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	k := newKept()
	before, _, err := content.Write(k, int(f.Fd()), size)
	if err != nil || len(before.Lists) != 32 || len(before.Extents) > 0 {
		t.Fatalf("%d lists, %d extents, %v", len(before.Lists), len(before.Extents), err)
	}
	if err := before.Reuse(k, k); err != nil {
		t.Error(err)
	}
	if _, err := f.WriteAt([]byte("changed"), 500<<20); err != nil {
		t.Fatal(err)
	}
	after, _, err := content.Write(k, int(f.Fd()), size)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for i := range after.Lists {
		if after.Lists[i] != before.Lists[i] {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("one change changed %d lists", changed)
	}
}

// at1 writes at a place.
type at1 struct {
	f  *os.File
	at int64
}

func (w *at1) Write(b []byte) (int, error) { return w.f.WriteAt(b, w.at) }

func TestValues(t *testing.T) {
	k := newKept()
	for _, n := range []int{0, 1, 512, 513, 1 << 20, 40 << 20} {
		want := bytes.Repeat([]byte{1, 2, 3}, n)[:n]
		c, err := content.FromBytes(k, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.All(k, 64<<20)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
		if n > 0 {
			if _, err := c.All(k, int64(n-1)); !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
	}
}

// FuzzList: a list that is taken leads to nothing outside of the content.
func FuzzList(f *testing.F) {
	f.Add([]byte{0x80}, int64(100))
	f.Add([]byte("\x81\xa2ai"), int64(1<<40))
	f.Fuzz(func(t *testing.T, list []byte, size int64) {
		k := newKept()
		id, _ := k.Put(list)
		c := content.Content{Size: size, Lists: []chunk.ID{id}}
		_ = c.Each(k, nil, func(e content.Extent) error {
			if e.At < 0 || e.Len == 0 || e.At+int64(e.Len) > size {
				t.Errorf("%+v in %d bytes", e, size)
			}
			return nil
		})
	})
}
