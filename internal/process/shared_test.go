package process

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// A file that has held another object's content has nothing of it left when it is filled
// anew, and holes where that object has them.
func TestUsedFileIsFilledAnew(t *testing.T) {
	const page, size = 4096, 8 * 4096
	fd, err := MemoryFile(size)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Pwrite(fd, bytes.Repeat([]byte("old "), size/4), 0); err != nil {
		t.Fatal(err)
	}
	k := &sharedCopy{of: &image.Shared{Size: size}, parts: []part{
		{1 * page, bytes.Repeat([]byte{1}, page)}, {2 * page, bytes.Repeat([]byte{2}, page)}, {5 * page, bytes.Repeat([]byte{5}, page)},
	}}
	if err := k.fill(fd, true); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	if n, err := unix.Pread(fd, got, 0); err != nil || n != size {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	want := make([]byte, size)
	for _, p := range k.parts {
		copy(want[p.at:], p.data)
	}
	if !bytes.Equal(got, want) {
		t.Error("it has another content")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Blocks*512 != 3*page {
		t.Errorf("it takes %d bytes, not %d: %v", st.Blocks*512, 3*page, err)
	}
}
