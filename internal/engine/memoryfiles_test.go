package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/xattr"
)

// What has no content, or little, takes no descriptor of the supervisor's, of which all sandboxes of a template
// have a part: many such files would take them all in a few checkpoints.
func TestSmallFilesTakeNoDescriptors(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, root := range []string{from, to} {
		if err := os.MkdirAll(filepath.Join(root, "dev/shm"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	page, large := make([]byte, smallFile), bytes.Repeat([]byte("large"), smallFile)
	page[6000] = 1
	at := func(root, name string) string { return filepath.Join(root, "dev/shm", name) }
	for _, err := range []error{
		os.WriteFile(at(from, "empty"), nil, 0o600), os.WriteFile(at(from, "holes"), nil, 0o600),
		os.Truncate(at(from, "holes"), 1<<20), os.WriteFile(at(from, "full"), []byte("content"), 0o600),
		os.WriteFile(at(from, "page"), page, 0o600), os.WriteFile(at(from, "large"), large, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func(root string) int {
		fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	m := newMemoryFiles()
	defer m.close()
	if err := m.shm.in(open(from), func(dir int) error { return m.shm.read(dir, "", map[uint64]string{}) }); err != nil {
		t.Fatal(err)
	}
	var held int
	for _, e := range m.shm.entries {
		if e.data >= 0 {
			held++
		}
	}
	if held != 1 {
		t.Errorf("%d files take descriptors", held)
	}
	if err := m.write(open(to)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{"empty": nil, "holes": make([]byte, 1<<20), "full": []byte("content"), "page": page, "large": large} {
		if got, err := os.ReadFile(at(to, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(at(to, "page"), &st); err != nil || st.Blocks*512 >= smallFile {
		t.Errorf("one page of a file takes %d bytes, %v", st.Blocks*512, err)
	}
}

// A file that a restore could not make is refused when it is looked at, not when the sandbox is to come back.
func TestTooLongPathsInMemoryAreRefused(t *testing.T) {
	name := strings.Repeat("d", 200)
	for depth, fits := range map[int]bool{20: true, 21: false} { // 4,019 and 4,220 bytes
		dir, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		top := dir
		for range depth {
			if err := unix.Mkdirat(dir, name, 0o700); err != nil {
				t.Fatal(err)
			}
			if dir, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(dir)
		}
		defer unix.Close(top)
		m := newMemoryFiles()
		if err := m.shm.read(top, "", map[uint64]string{}); fits != (err == nil) || err != nil && !fault.Is(err, fault.Uncapturable) {
			t.Errorf("at a depth of %d: %v", depth, err)
		}
	}
}

// Attributes are written whatever the length of a file's path, and bounded, as they are in the
// supervisor's memory.
func TestAttributesOfMemoryFiles(t *testing.T) {
	root, err := os.MkdirTemp("/dev/shm", "attributes")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	shm := filepath.Join(root, "dev/shm")
	if err := os.MkdirAll(shm, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)

	m := newMemoryFiles()
	name := strings.Repeat("d", 255)
	for at := name; ; at += "/" + name {
		e := memoryFile{path: at, data: -1}
		e.stat.Mode = unix.S_IFDIR | 0o700
		if len(at)+len(name)+1 >= unix.PathMax {
			e.attributes = []xattr.Attribute{{Name: "user.deep", Value: []byte("value")}}
		}
		if m.shm.entries = append(m.shm.entries, e); e.attributes != nil {
			break
		}
	}
	if err := m.write(fd); err != nil {
		t.Fatal(err)
	}
	again := newMemoryFiles()
	read := func() error {
		return again.shm.in(fd, func(dir int) error { return again.shm.read(dir, "", map[uint64]string{}) })
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	if e := again.shm.entries[len(again.shm.entries)-1]; len(e.attributes) != 1 || string(e.attributes[0].Value) != "value" {
		t.Errorf("it has the attributes %v", e.attributes)
	}
	if got := again.weigh(); got != int64(len("user.deepvalue")) {
		t.Errorf("they weigh %d bytes", got)
	}
	again.close()

	for i := range mostAttributed/60_000 + 1 {
		f := filepath.Join(shm, fmt.Sprint(i))
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := xattr.Write(f, []xattr.Attribute{{Name: "user.large", Value: make([]byte, 60_000)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := read(); !fault.Is(err, fault.Uncapturable) {
		t.Errorf("too many were read: %v", err)
	}
	again.close()
}
