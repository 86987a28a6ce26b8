package erofs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/image/erofstest"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// writeImage writes the tree into a file of the test.
func writeImage(t testing.TB, tree *erofs.Tree) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.erofs")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := erofs.Write(t.Context(), f, tree)
	if err != nil {
		t.Fatal(err)
	}
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if st.Size() != info.Size || info.Size%erofs.BlockSize != 0 {
		t.Errorf("image has %d bytes, Info says %d", st.Size(), info.Size)
	}
	erofstest.Fsck(t, path)
	return path
}

// file makes a regular file of the given content.
func file(content string) *erofs.Node {
	return &erofs.Node{
		Mode: unix.S_IFREG | 0o644, Size: int64(len(content)),
		Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil },
	}
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDirectoryRoundTrip packs a directory with every kind of file and
// attribute and reads it back through the kernel.
func TestDirectoryRoundTrip(t *testing.T) {
	roottest.Need(t, "device nodes and owners")
	src := t.TempDir()
	p := func(name string) string { return filepath.Join(src, name) }
	must(t, os.WriteFile(p("empty"), nil, 0o600))
	must(t, os.WriteFile(p("small"), []byte("hello\n"), 0o644))
	for _, size := range []int{1, 2047, 2048, 2049, 4095, 4096, 4097, 6144, 6145, 8192, 65536, 65537, 65536 + 2048, 1 << 20, 1<<20 + 5} {
		b := bytes.Repeat([]byte("sandtree-"), size/9+1)[:size]
		must(t, os.WriteFile(p(fmt.Sprintf("size-%d", size)), b, 0o640))
		must(t, os.WriteFile(p(fmt.Sprintf("zeros-%d", size)), make([]byte, size), 0o640))
	}
	must(t, os.WriteFile(p("setuid"), []byte("#!"), 0o755))
	must(t, unix.Chmod(p("setuid"), 0o6755))
	must(t, os.Mkdir(p("sticky"), 0o777))
	must(t, unix.Chmod(p("sticky"), 0o1777))
	must(t, os.Symlink("small", p("link")))
	must(t, os.Symlink("/"+strings.Repeat("x", 3000), p("long-link")))
	must(t, os.Symlink("/"+strings.Repeat("y/", 2046), p("longest-link")))
	must(t, os.Link(p("small"), p("sticky/hard")))
	must(t, os.Link(p("link"), p("hard-symlink")))
	must(t, os.WriteFile(p(strings.Repeat("n", 255)), []byte("long name"), 0o644))
	must(t, os.WriteFile(p("-before-dot"), nil, 0o644))
	must(t, os.WriteFile(p("ümläut \n\xff"), nil, 0o644))
	must(t, unix.Mknod(p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(p("whiteout"), unix.S_IFCHR, 0))
	must(t, unix.Mknod(p("disk"), unix.S_IFBLK|0o660, int(unix.Mkdev(4095, 1<<20-1))))
	must(t, unix.Mkfifo(p("fifo"), 0o600))
	must(t, unix.Mknod(p("socket"), unix.S_IFSOCK|0o755, 0))
	must(t, os.Chown(p("small"), 3_000_000_000, 70_000))
	must(t, os.Lchown(p("link"), 12, 34))
	must(t, unix.Lsetxattr(p("small"), "user.a", []byte("b"), 0))
	must(t, unix.Lsetxattr(p("small"), "user.empty", nil, 0))
	must(t, unix.Lsetxattr(p("small"), "user.large", bytes.Repeat([]byte{0, 1, 2}, 700), 0))
	must(t, unix.Lsetxattr(p("size-4095"), "trusted.overlay.metacopy", []byte{}, 0))
	must(t, unix.Lsetxattr(p("sticky"), "trusted.overlay.opaque", []byte("y"), 0))
	must(t, unix.Lsetxattr(p("link"), "trusted.onlink", []byte("z"), 0))
	must(t, unix.Lsetxattr(p("setuid"), "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(t, unix.Lsetxattr(src, "user.on-root", []byte("r"), 0))
	sparse, err := os.Create(p("sparse"))
	must(t, err)
	for _, off := range []int64{0, 100 << 20, 103<<20 - 2} {
		_, err = sparse.WriteAt([]byte("data"), off)
		must(t, err)
	}
	must(t, sparse.Truncate(200<<20+17))
	must(t, sparse.Close())
	must(t, os.MkdirAll(p(strings.Repeat("deep/", 300)), 0o755))
	for i, name := range []string{"small", "sticky", "null", "fifo"} {
		must(t, os.Chtimes(p(name), time.Time{}, time.Unix(-5+int64(i)*3_000_000_000, 123456789)))
	}

	d, err := erofs.Scan(t.Context(), src)
	must(t, err)
	defer d.Close()
	img := writeImage(t, &d.Tree)
	st, err := os.Stat(img)
	must(t, err)
	if st.Size() > 8<<20 {
		t.Errorf("a sparse file of 200 MiB makes an image of %d bytes", st.Size())
	}
	want := erofstest.Read(t, src, nil)
	for name, mount := range map[string]func(testing.TB, string) string{"file": erofstest.Mount, "loop": erofstest.MountLoop} {
		t.Run(name, func(t *testing.T) { erofstest.Diff(t, erofstest.Read(t, mount(t, img), nil), want) })
	}
}

// TestLargeFile has a sparse file of more than 4 GiB and few blocks.
func TestLargeFile(t *testing.T) {
	src := t.TempDir()
	f, err := os.Create(filepath.Join(src, "large"))
	must(t, err)
	defer f.Close()
	const size = 5<<30 + 17
	must(t, f.Truncate(size))
	offsets := []int64{1, 1 << 32, 1<<32 + 1<<20 - 2, size - 4}
	for i, off := range offsets {
		_, err = f.WriteAt([]byte{'d', 'a', 't', byte(i)}, off)
		must(t, err)
	}
	d, err := erofs.Scan(t.Context(), src)
	must(t, err)
	defer d.Close()
	img := writeImage(t, &d.Tree)
	if st, err := os.Stat(img); err != nil || st.Size() > 2<<20 {
		t.Errorf("image: %d bytes, %v", st.Size(), err)
	}
	m, err := os.Open(filepath.Join(erofstest.Mount(t, img), "large"))
	must(t, err)
	defer m.Close()
	if st, err := m.Stat(); err != nil || st.Size() != size {
		t.Errorf("size %d, %v", st.Size(), err)
	}
	for _, off := range append(offsets, 2<<30, 1<<32+200, 1<<32-100) {
		got, want := make([]byte, 200), make([]byte, 200)
		n, _ := f.ReadAt(want, max(off-2, 0))
		if g, _ := m.ReadAt(got, max(off-2, 0)); g != n || !bytes.Equal(got, want) {
			t.Errorf("at %d: %q, want %q", off, got[:g], want[:n])
		}
	}
}

// TestLargeDirectory has as many entries as no cache or block holds.
func TestLargeDirectory(t *testing.T) {
	tree := erofs.NewTree()
	big := erofs.NewDir(0o755)
	tree.Root.Add("big", big)
	for i := range 30_000 {
		big.Add(fmt.Sprintf("%d-%s", i, strings.Repeat("e", i%200)), file(fmt.Sprint(i)))
	}
	dir := erofstest.Mount(t, writeImage(t, tree))
	names, err := os.ReadDir(filepath.Join(dir, "big"))
	must(t, err)
	if len(names) != 30_000 {
		t.Errorf("%d entries", len(names))
	}
	for i := 0; i < 30_000; i += 7 {
		b, err := os.ReadFile(filepath.Join(dir, "big", fmt.Sprintf("%d-%s", i, strings.Repeat("e", i%200))))
		if err != nil || string(b) != fmt.Sprint(i) {
			t.Fatalf("entry %d: %q, %v", i, b, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "big", "1-absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent name: %v", err)
	}
}

// TestLargeXattrs has more xattrs on a file of each kind than a block holds; the
// host's file systems mostly do not allow that.
func TestLargeXattrs(t *testing.T) {
	attrs := map[string]string{}
	for i := range 20 {
		attrs[fmt.Sprintf("user.%d", i)] = strings.Repeat(string(rune('a'+i)), 80*i*i+i)
	}
	tree := erofs.NewTree()
	dir, reg := erofs.NewDir(0o755), file("tail")
	link := &erofs.Node{Mode: unix.S_IFLNK | 0o777, Target: "target"}
	trusted := map[string]string{}
	for k, v := range attrs {
		trusted[strings.Replace(k, "user.", "trusted.", 1)] = v
	}
	dir.Xattrs, reg.Xattrs, link.Xattrs, tree.Root.Xattrs = attrs, attrs, trusted, attrs
	dir.Add("in", file("x"))
	for name, n := range map[string]*erofs.Node{"dir": dir, "reg": reg, "link": link, "after": file("after")} {
		tree.Root.Add(name, n)
	}
	at := erofstest.Mount(t, writeImage(t, tree))
	for path, attrs := range map[string]map[string]string{".": attrs, "dir": attrs, "reg": attrs, "link": trusted} {
		got := 0
		buf := make([]byte, 1<<16)
		for name, value := range attrs {
			n, err := unix.Lgetxattr(filepath.Join(at, path), name, buf)
			if err == nil && string(buf[:n]) == value {
				got++
			}
		}
		if got != len(attrs) {
			t.Errorf("%s: %d of %d xattrs are right", path, got, len(attrs))
		}
	}
	for path, want := range map[string]string{"reg": "tail", "dir/in": "x", "after": "after"} {
		if b, err := os.ReadFile(filepath.Join(at, path)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	if got, err := os.Readlink(filepath.Join(at, "link")); err != nil || got != "target" {
		t.Errorf("link: %q, %v", got, err)
	}
}

// TestEqualTreesGiveEqualImages holds whatever the order of map iteration, and
// different contents give different UUIDs.
func TestEqualTreesGiveEqualImages(t *testing.T) {
	build := func(content string) *erofs.Tree {
		tree := erofs.NewTree()
		for i := range 500 {
			dir := erofs.NewDir(0o700)
			n := file(content + strings.Repeat("c", i*50))
			n.Xattrs = map[string]string{"user.a": "1", "user.b": "2", "trusted.c": "3"}
			dir.Add("f", n)
			dir.Add("g", n)
			tree.Root.Add(fmt.Sprint(i), dir)
		}
		return tree
	}
	sum := func(content string) [32]byte {
		b, err := os.ReadFile(writeImage(t, build(content)))
		must(t, err)
		return sha256.Sum256(b)
	}
	if one, two := sum("x"), sum("x"); one != two {
		t.Error("equal trees, different images")
	}
	uuid := func(content string) [16]byte {
		info, err := erofs.Write(t.Context(), &memory{}, build(content))
		must(t, err)
		return info.UUID
	}
	if uuid("x") == uuid("y") {
		t.Error("images of equal metadata and different content have the same UUID")
	}
}

// memory is a sink without a file.
type memory struct{ b []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if n := int(off) + len(p); n > len(m.b) {
		m.b = append(m.b, make([]byte, n-len(m.b))...)
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) Truncate(size int64) error {
	m.b = append(m.b, make([]byte, max(0, size-int64(len(m.b))))...)[:size]
	return nil
}

// TestRefusals: what the format cannot hold gives a clear error.
func TestRefusals(t *testing.T) {
	short := file("0123456789")
	short.Size = 11
	for _, c := range []struct {
		name string
		node *erofs.Node
		kind fault.Kind
		text string
	}{
		{"short", short, fault.Conflict, "changed while it was read"},
		{"device", &erofs.Node{Mode: unix.S_IFCHR, Major: 5000}, fault.Invalid, "12 bits"},
		{"xattr", &erofs.Node{Mode: unix.S_IFIFO, Xattrs: map[string]string{"other.x": ""}}, fault.Invalid, "other.x"},
		{"value", &erofs.Node{Mode: unix.S_IFIFO, Xattrs: map[string]string{"user.x": strings.Repeat("v", 65536)}}, fault.Invalid, "65536"},
		{"mode", &erofs.Node{Mode: 0o644}, fault.Invalid, "no kind of file"},
		{"target", &erofs.Node{Mode: unix.S_IFLNK}, fault.Invalid, "target"},
		{"size", &erofs.Node{Mode: unix.S_IFREG, Size: 1 << 50}, fault.Invalid, "size"},
		{"a/b", file(""), fault.Invalid, "name"},
		{strings.Repeat("n", 256), file(""), fault.Invalid, "256 bytes"},
	} {
		tree := erofs.NewTree()
		tree.Root.Add(c.name, c.node)
		_, err := erofs.Write(t.Context(), &memory{}, tree)
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%.20s: %v (%s)", c.name, err, fault.KindOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := erofs.Write(ctx, &memory{}, erofs.NewTree()); !fault.Is(err, fault.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	must(t, err)
	defer full.Close()
	if _, err := erofs.Write(t.Context(), full, erofs.NewTree()); !fault.Is(err, fault.Exhausted) {
		t.Errorf("full disk: %v", err)
	}
}

// TestHostDirectory packs a real directory of the machine.
func TestHostDirectory(t *testing.T) {
	const src = "/etc"
	d, err := erofs.Scan(t.Context(), src)
	must(t, err)
	defer d.Close()
	mounted := map[string]bool{} // other mounts below /etc are left out
	mounts, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if rel, ok := strings.CutPrefix(strings.Fields(line)[1], src+"/"); ok {
			mounted[rel] = true
		}
	}
	skip := func(p string) bool { return mounted[p] }
	want := erofstest.Read(t, src, skip)
	erofstest.Diff(t, erofstest.Read(t, erofstest.Mount(t, writeImage(t, &d.Tree)), skip), want)
}
