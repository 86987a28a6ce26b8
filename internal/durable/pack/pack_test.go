package pack_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/pack"
)

// packed makes a pack of some chunks.
func packed(t testing.TB) (name string, file []byte, chunks [][]byte) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	random := make([]byte, 5000)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	chunks = [][]byte{{1}, bytes.Repeat([]byte("compresses "), 3000), random, make([]byte, chunk.Max)}
	var b bytes.Buffer
	w, err := pack.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chunks {
		if err := w.Add(chunk.Sum(c), chunk.Encode(nil, c), len(c)); err != nil {
			t.Fatal(err)
		}
	}
	size := w.Size()
	if name, err = w.Finish(); err != nil || size != int64(b.Len()) || w.Chunks() != len(chunks) {
		t.Fatalf("%d bytes, not %d, %v", b.Len(), size, err)
	}
	return name, b.Bytes(), chunks
}

func TestPack(t *testing.T) {
	name, file, chunks := packed(t)
	if !pack.IsName(name) || pack.IsName("x"+name) || pack.IsName(name[1:]) || pack.IsName("../"+name[3:]) {
		t.Errorf("names like %s", name)
	}
	entries, err := pack.ReadIndex(bytes.NewReader(file), int64(len(file)), name)
	if err != nil || len(entries) != len(chunks) {
		t.Fatalf("%d chunks, %v", len(entries), err)
	}
	for i, e := range entries {
		b, err := pack.Read(bytes.NewReader(file), e, []byte("before"), nil)
		if err != nil || !bytes.Equal(b, append([]byte("before"), chunks[i]...)) {
			t.Errorf("chunk %d: %d bytes, %v", i, len(b), err)
		}
	}
	if entries[1].Stored > 1000 || entries[2].Stored != entries[2].Length || entries[3].Stored > 1000 {
		t.Errorf("%+v", entries)
	}
	// Every byte counts: of the index when it is read, of a chunk when that is.
	for at := 0; at < len(file); at += max(1, len(file)/500) {
		bad := bytes.Clone(file)
		bad[at] ^= 0x10
		entries, err := pack.ReadIndex(bytes.NewReader(bad), int64(len(bad)), name)
		if err != nil && !errors.Is(err, pack.ErrCorrupt) {
			t.Errorf("byte %d: %v", at, err)
		}
		for i, e := range entries {
			b, err := pack.Read(bytes.NewReader(bad), e, nil, nil)
			if err == nil && !bytes.Equal(b, chunks[i]) || err != nil && !errors.Is(err, chunk.ErrCorrupt) {
				t.Errorf("byte %d, chunk %d: %v", at, i, err)
			}
		}
	}
	for _, n := range []int{0, 1, 8, 50, len(file) - 1} {
		if _, err := pack.ReadIndex(bytes.NewReader(file[:n]), int64(n), name); !errors.Is(err, pack.ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	other := "0" + name[1:]
	if name[0] == '0' {
		other = "1" + name[1:]
	}
	if _, err := pack.ReadIndex(bytes.NewReader(file), int64(len(file)), other); !errors.Is(err, pack.ErrCorrupt) {
		t.Errorf("another name: %v", err)
	}
}

// TestBomb: a frame that unfolds to more than the index says.
func TestBomb(t *testing.T) {
	zeros := make([]byte, chunk.Max)
	stored := chunk.Encode(nil, zeros)
	if len(stored) > 1000 {
		t.Fatalf("%d bytes", len(stored))
	}
	for _, length := range []int{len(stored) + 1, 1000, chunk.Max - 1, chunk.Max + 1, 1 << 30, 0, -1} {
		if b, err := chunk.Decode(nil, stored, chunk.Sum(zeros), length); !errors.Is(err, chunk.ErrCorrupt) || len(b) > 0 {
			t.Errorf("length %d: %d bytes, %v", length, len(b), err)
		}
	}
}

// FuzzIndex: an index that is taken leads nowhere outside of the file.
func FuzzIndex(f *testing.F) {
	name, file, _ := packed(f)
	f.Add(file, name)
	f.Add([]byte("stpack\x00\x01"), "")
	f.Fuzz(func(t *testing.T, file []byte, name string) {
		entries, err := pack.ReadIndex(bytes.NewReader(file), int64(len(file)), name)
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.Offset < 0 || e.Offset+int64(e.Stored) > int64(len(file)) {
				t.Errorf("%+v", e)
			}
			_, _ = pack.Read(bytes.NewReader(file), e, nil, nil)
		}
	})
}

// FuzzDecode: a stored form that is taken is the chunk of its name.
func FuzzDecode(f *testing.F) {
	c := bytes.Repeat([]byte("compresses "), 300)
	f.Add(chunk.Encode(nil, c), len(c))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd}, 100)
	f.Fuzz(func(t *testing.T, stored []byte, length int) {
		b, err := chunk.Decode(nil, stored, chunk.Sum(c), length)
		if err == nil && !bytes.Equal(b, c) {
			t.Errorf("%q", b)
		}
	})
}
