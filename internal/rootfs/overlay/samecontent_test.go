package overlay

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSparseFilesAreComparedWithoutTheirHoles(t *testing.T) {
	const at, size = 500 << 30, 1 << 40
	file := func(name, text string) int {
		path := filepath.Join(t.TempDir(), name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		if text != "" {
			if _, err := f.WriteAt([]byte(text), at); err != nil {
				t.Fatal(err)
			}
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	hole, zero, mid, mad := file("hole", ""), file("zero", "\x00"), file("mid", "mid"), file("mad", "mad")
	for _, c := range []struct {
		a, b int
		same bool
	}{{mid, mid, true}, {mid, file("again", "mid"), true}, {mid, mad, false}, {mid, hole, false}, {hole, mid, false}, {hole, zero, true}} {
		if same, err := sameContent(c.a, c.b); err != nil || same != c.same {
			t.Errorf("%d and %d: %v, %v: want %v", c.a, c.b, same, err, c.same)
		}
	}
}
