package envelope_test

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/envelope"
	"github.com/sandtree/sandtree/internal/process/image"
)

// kept is a store of chunks in memory.
type kept struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
}

func (k *kept) Put(b []byte) (chunk.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := chunk.Sum(b)
	k.chunks[id] = bytes.Clone(b)
	return id, nil
}

func (k *kept) Reuse(chunk.ID) error { return nil }

func (k *kept) Append(dst []byte, id chunk.ID) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chunks[id] == nil {
		return dst, fmt.Errorf("chunk %s is not there", id)
	}
	return append(dst, k.chunks[id]...), nil
}

type holder struct {
	Name  string
	Files []*os.File
	Trees *image.Tree
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestFiles: files come back once for each place, and none is left by an error.
func TestFiles(t *testing.T) {
	k := &kept{chunks: map[chunk.ID][]byte{}}
	f, err := os.CreateTemp(t.TempDir(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("some text"); err != nil {
		t.Fatal(err)
	}
	v := holder{Name: "x", Files: []*os.File{f, nil, f}, Trees: &image.Tree{Shared: []*image.Shared{{FD: int(f.Fd())}, {FD: -1}}}}
	c, read, err := envelope.Write(k, v)
	if err != nil || read != 9 {
		t.Fatalf("%d bytes, %v", read, err)
	}
	if at, err := unix.Seek(int(f.Fd()), 0, 1); err != nil || at != 9 {
		t.Errorf("the file's offset moved to %d, %v", at, err)
	}
	before := descriptors(t)
	var got holder
	if err := envelope.Read(t.Context(), k, c, &got); err != nil {
		t.Fatal(err)
	}
	if n := descriptors(t) - before; n != 3 || got.Files[1] != nil || got.Trees.Shared[1].FD != -1 {
		t.Errorf("%d descriptors, %+v", n, got)
	}
	b := make([]byte, 9)
	if _, err := got.Files[2].ReadAt(b, 0); err != nil || string(b) != "some text" {
		t.Errorf("%q, %v", b, err)
	}
	got.Files[0].Close()
	got.Files[2].Close()
	got.Trees.Shared[0].Close()
	// A reader of another type gets nothing.
	var other struct{ Files []*os.File }
	if err := envelope.Read(t.Context(), k, c, &other); err == nil || other.Files != nil {
		t.Errorf("%v", err)
	}
	if n := descriptors(t); n != before {
		t.Errorf("%d descriptors are left", n-before)
	}
	files, err := envelope.Contents(k, c)
	if err != nil || len(files) != 1 || files[0].Size != 9 {
		t.Errorf("%+v, %v", files, err)
	}
	if _, _, err := envelope.Write(k, holder{Files: []*os.File{os.Stdin, pipe(t)}}); err == nil {
		t.Error("a pipe was kept")
	}
}

func pipe(t testing.TB) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r
}

// FuzzRead: an envelope that is taken or not leaves no descriptor.
func FuzzRead(f *testing.F) {
	seed := &kept{chunks: map[chunk.ID][]byte{}}
	c, _, err := envelope.Write(seed, holder{Name: "a"})
	if err != nil {
		f.Fatal(err)
	}
	b, err := c.All(seed, 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(_ *testing.T, b []byte) {
		k := &kept{chunks: map[chunk.ID][]byte{}}
		c, err := content.FromBytes(k, b)
		if err != nil {
			return
		}
		if v, err := envelope.Check[holder](k, c); err == nil {
			_ = v
		}
	})
}
