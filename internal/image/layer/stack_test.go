package layer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/image/erofstest"
	"github.com/sandtree/sandtree/internal/image/layer"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// entry is a tar entry in short.
type entry struct {
	tar.Header
	content string
}

func reg(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content}
}

func dir(name string, mode int64) entry {
	return entry{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: 7}, ""}
}

func symlink(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hard(name, target string) entry {
	return entry{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}, ""}
}

// pack makes a tar stream.
func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.ModTime.IsZero() {
			e.ModTime = time.Unix(1_600_000_000, 0)
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// newStack returns an empty stack for the test.
func newStack(t testing.TB) *layer.Stack {
	t.Helper()
	spool, err := layer.NewSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { spool.Close() })
	return layer.NewStack(spool, layer.DefaultLimits)
}

// write writes a tree as an image of the test.
func write(t testing.TB, tree *erofs.Tree) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "*.erofs")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := erofs.Write(t.Context(), f, tree); err != nil {
		t.Fatal(err)
	}
	erofstest.Fsck(t, f.Name())
	return f.Name()
}

// list returns the paths of a tree, with content, target or kind.
func list(t testing.TB, tree *erofs.Tree) string {
	t.Helper()
	var out []string
	var walk func(n *erofs.Node, path string)
	walk = func(n *erofs.Node, path string) {
		for _, name := range n.Names() {
			c, p := n.Child(name), path+name
			switch {
			case c.IsDir():
				mark := "/"
				if c.IsOpaque() {
					mark = "/!"
				}
				out = append(out, fmt.Sprintf("%s%s:%o", p, mark, c.Mode&0o7777))
				walk(c, p+"/")
			case c.Kind() == unix.S_IFLNK:
				out = append(out, p+"->"+c.Target)
			case c.IsWhiteout():
				out = append(out, "-"+p)
			case c.Kind() == unix.S_IFREG:
				content := ""
				if c.Open != nil {
					r, err := c.Open()
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(r)
					if err != nil {
						t.Fatal(err)
					}
					content = string(b)
				}
				out = append(out, p+"="+content)
			default:
				out = append(out, fmt.Sprintf("%s:%o:%d:%d", p, c.Mode, c.Major, c.Minor))
			}
		}
	}
	walk(tree.Root, "")
	return strings.Join(out, " ")
}

// TestLayers gives layers with what they must yield, flattened and as the
// difference of the last, and lets the kernel's overlayfs agree.
func TestLayers(t *testing.T) {
	for _, c := range []struct {
		name       string
		layers     [][]entry
		view, diff string
	}{
		{"missing parents", [][]entry{{reg("a/b/c", "1")}}, "a/:755 a/b/:755 a/b/c=1", "a/:755 a/b/:755 a/b/c=1"},
		{"leading slash and dots", [][]entry{{reg("/a/../b/./c", "1")}}, "b/:755 b/c=1", "b/:755 b/c=1"},
		{"parents keep their attributes", [][]entry{{dir("a", 0o711), dir("a/b", 0o1777)}, {reg("a/b/c", "1")}},
			"a/:711 a/b/:1777 a/b/c=1", "a/:711 a/b/:1777 a/b/c=1"},
		{"attributes change", [][]entry{{dir("a", 0o711), reg("a/x", "1")}, {dir("a", 0o700)}}, "a/:700 a/x=1", "a/:700"},
		{"whiteout", [][]entry{{reg("a/x", "1"), reg("a/y", "2")}, {reg("a/.wh.x", "")}}, "a/:755 a/y=2", "a/:755 -a/x"},
		{"whiteout of nothing", [][]entry{{reg("y", "2")}, {reg(".wh.x", "")}}, "y=2", ""},
		{"whiteout of a directory", [][]entry{{reg("a/b/x", "1"), reg("k", "")}, {reg("a/.wh.b", "")}}, "a/:755 k=", "a/:755 -a/b"},
		{"whiteout, then new", [][]entry{{reg("a/x", "1")}, {reg(".wh.a", ""), reg("a/y", "2")}}, "a/:755 a/y=2", "a/!:755 a/y=2"},
		{"new, then whiteout", [][]entry{{reg("a/x", "1")}, {reg("a/y", "2"), reg(".wh.a", "")}}, "a/:755 a/y=2", "a/!:755 a/y=2"},
		{"new file, then whiteout", [][]entry{{reg("x", "1")}, {reg("x", "2"), reg(".wh.x", "")}}, "x=2", "x=2"},
		{"opaque first", [][]entry{{reg("a/x", "1"), reg("a/d/z", "3")}, {reg("a/.wh..wh..opq", ""), reg("a/y", "2")}}, "a/:755 a/y=2", "a/!:755 a/y=2"},
		{"opaque last", [][]entry{{reg("a/x", "1"), reg("a/d/z", "3")}, {reg("a/d/w", "2"), reg("a/.wh..wh..opq", "")}},
			"a/:755 a/d/:755 a/d/w=2", "a/!:755 a/d/:755 a/d/w=2"},
		{"opaque, then attributes", [][]entry{{reg("a/x", "1")}, {reg("a/.wh..wh..opq", ""), dir("a", 0o700)}}, "a/:700", "a/!:700"},
		{"opaque root", [][]entry{{reg("a/x", "1"), reg("b", "")}, {reg("a/y", "2"), reg(".wh..wh..opq", "")}}, "a/:755 a/y=2", "a/!:755 a/y=2 -b"},
		{"other marks of aufs", [][]entry{{reg(".wh..wh.plnk", ""), reg("x", "")}, {dir(".wh..wh.orph", 0o700), reg(".wh..wh.orph/a/b", "")}}, "x=", ""},
		{"file over directory", [][]entry{{reg("a/x", "1")}, {reg("a", "2")}}, "a=2", "a=2"},
		{"directory over file", [][]entry{{reg("a", "1")}, {reg("a/x", "2")}}, "", ""}, // refused, see below
		{"directory entry over file", [][]entry{{reg("a", "1")}, {dir("a", 0o755), reg("a/x", "2")}}, "a/:755 a/x=2", "a/:755 a/x=2"},
		{"directory, file, directory", [][]entry{{reg("a/x", "1")}, {reg("a", ""), dir("a", 0o755)}}, "a/:755", "a/!:755"},
		{"directory below file in a middle layer", [][]entry{{reg("a/x", "1")}, {reg("a", "")}, {dir("a", 0o755), reg("a/y", "")}}, "a/:755 a/y=", "a/:755 a/y="},
		{"duplicate entries", [][]entry{{reg("a", "1"), reg("a", "22"), dir("d", 0o755), dir("d", 0o700)}}, "a=22 d/:700", "a=22 d/:700"},
		{"through a symbolic link", [][]entry{{dir("usr/lib", 0o755), symlink("lib", "usr/lib")}, {reg("lib/x", "1")}},
			"lib->usr/lib usr/:755 usr/lib/:755 usr/lib/x=1", "usr/:755 usr/lib/:755 usr/lib/x=1"},
		{"through an absolute one", [][]entry{{symlink("a", "/../b/c"), reg("a/x", "1")}}, "a->/../b/c b/:755 b/c/:755 b/c/x=1", "a->/../b/c b/:755 b/c/:755 b/c/x=1"},
		{"link upwards", [][]entry{{symlink("d/up", "../../../../e"), reg("d/up/x", "1")}},
			"d/:755 d/up->../../../../e e/:755 e/x=1", "d/:755 d/up->../../../../e e/:755 e/x=1"},
		{"directory entry over a link", [][]entry{{dir("r", 0o755), symlink("l", "r")}, {dir("l", 0o700), reg("l/x", "1")}},
			"l/:700 l/x=1 r/:755", "l/:700 l/x=1"},
		{"file entry over a link", [][]entry{{reg("r", "1"), symlink("l", "r")}, {reg("l", "2")}}, "l=2 r=1", "l=2"},
		{"hard link across layers", [][]entry{{dir("d", 0o711), reg("d/x", "1"), reg("k", "")}, {hard("y", "d/x")}},
			"d/:711 d/x=1 k= y=1", "d/:711 d/x=1 y=1"},
		{"hard link through a link", [][]entry{{reg("d/x", "1"), symlink("l", "d"), hard("y", "./l/x")}},
			"d/:755 d/x=1 l->d y=1", "d/:755 d/x=1 l->d y=1"},
		{"hard link to itself", [][]entry{{reg("x", "1"), hard("x", "x")}}, "x=1", "x=1"},
		{"hard link over its parent", [][]entry{{reg("d/x", "1"), hard("d", "d/x")}}, "d=1", "d=1"},
		{"a device as whiteout", [][]entry{{reg("x", "1"), reg("k", "")}, {{Header: tar.Header{Typeflag: tar.TypeChar, Name: "x"}}}}, "k=", "-x"},
		{"special files", [][]entry{{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3}},
			{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Mode: 0o660, Devmajor: 259, Devminor: 70000}},
			{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "fifo", Mode: 0o600}}}},
			"fifo:10600:0:0 null:20666:1:3 sda:60660:259:70000", "fifo:10600:0:0 null:20666:1:3 sda:60660:259:70000"},
		{"setuid", [][]entry{{{Header: tar.Header{Typeflag: tar.TypeReg, Name: "su", Mode: 0o6755, Uid: 0, Gid: 3_000_000_000}}, dir("tmp", 0o1777)}},
			"su= tmp/:1777", "su= tmp/:1777"},
		{"long names", [][]entry{{reg(strings.Repeat("d/", 500)+strings.Repeat("n", 255), "1"), symlink("l", strings.Repeat("t", 4000))}}, "*", "*"},
		{"root attributes", [][]entry{{dir("./", 0o711), reg("x", "")}, {reg("y", "")}}, "x= y=", "y="},
	} {
		// Test directories are named after it, and overlayfs takes commas as ends.
		t.Run(strings.ReplaceAll(c.name, ",", ""), func(t *testing.T) {
			s := newStack(t)
			var images []string
			var diff *erofs.Tree
			for _, entries := range c.layers {
				var err error
				diff, err = s.Apply(t.Context(), bytes.NewReader(pack(t, entries...)))
				if c.name == "directory over file" && err != nil {
					if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "no directory") {
						t.Fatal(err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				images = append(images, write(t, diff))
			}
			if got := list(t, s.View()); got != c.view && c.view != "*" {
				t.Errorf("view %s\nwant %s", got, c.view)
			}
			if got := list(t, diff); got != c.diff && c.diff != "*" {
				t.Errorf("diff %s\nwant %s", got, c.diff)
			}
			agree(t, images, write(t, s.View()))
		})
	}
}

// agree compares an overlay of the layers with the flattened image.
func agree(t *testing.T, layers []string, view string) {
	want := erofstest.Read(t, erofstest.Mount(t, view), nil)
	lowers := []string{t.TempDir()} // an overlay has at least two
	if err := os.Chmod(lowers[0], 0o755); err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		lowers = append(lowers, erofstest.Mount(t, l))
	}
	slices.Reverse(lowers)
	at := t.TempDir()
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lowers, ":")); err != nil {
		t.Fatalf("mount overlay: %v", err)
	}
	defer func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmount overlay: %v", err)
		}
	}()
	got := erofstest.Read(t, at, nil)
	erofstest.Diff(t, got, want)
}

// TestHostileTars: what no layer may hold is refused by kind and text.
func TestHostileTars(t *testing.T) {
	whole := pack(t, reg("a", strings.Repeat("x", 5000)))
	bad := bytes.Clone(whole)
	bad[0] = 'b' // the checksum no longer fits
	for _, c := range []struct {
		name, text string
		tar        []byte
	}{
		{"out of the root", "leads out", pack(t, reg("../x", ""))},
		{"out of the root, deeper", "leads out", pack(t, reg("a/../../x", ""))},
		{"hard link out of the root", "leads out", pack(t, reg("x", ""), hard("y", "../x"))},
		{"hard link to nothing", "does not exist", pack(t, hard("y", "x"))},
		{"hard link below nothing", "does not exist", pack(t, hard("y", "x/z"))},
		{"hard link to a directory", "to the directory", pack(t, dir("x", 0o755), hard("y", "x"))},
		{"hard link to the root", "to the root", pack(t, hard("y", "/"))},
		{"below a file", "no directory", pack(t, reg("x", ""), reg("x/y", ""))},
		{"loop of links", "symbolic links", pack(t, symlink("a", "b"), symlink("b", "a"), reg("a/x", ""))},
		{"root as a file", "root", pack(t, reg(".", ""))},
		{"long name", "256 bytes", pack(t, reg(strings.Repeat("n", 256), ""))},
		{"long path", "longer than Linux", pack(t, reg(strings.Repeat("d/", 2100)+"x", ""))},
		{"long name in a target", "256 bytes", pack(t, symlink("a", strings.Repeat("n", 256)), reg("a/x", ""))},
		{"long target", "target", pack(t, symlink("a", strings.Repeat("n/", 2100)))},
		{"whiteout of the parent", "name", pack(t, reg("a/.wh...", ""))},
		{"whiteout of itself", "name", pack(t, reg("a/.wh..", ""))},
		{"whiteout without name", "name", pack(t, reg("a/.wh.", ""))},
		{"owner", "owner", pack(t, entry{tar.Header{Typeflag: tar.TypeReg, Name: "x", Uid: 1 << 33}, ""})},
		{"device", "device", pack(t, entry{tar.Header{Typeflag: tar.TypeChar, Name: "x", Devmajor: 1 << 20}, ""})},
		{"kind", "type", pack(t, entry{tar.Header{Typeflag: 'Z', Name: "x"}, ""})},
		{"xattr", "value", pack(t, entry{tar.Header{Typeflag: tar.TypeReg, Name: "x", PAXRecords: map[string]string{"SCHILY.xattr.user.a": strings.Repeat("v", 1<<16)}}, ""})},
		{"damaged", "damaged", bad},
		{"truncated content", "truncated", whole[:3000]},
		{"truncated header", "truncated", whole[:300]},
		{"no tar", "damaged", []byte(strings.Repeat("no tar at all\n", 100))},
		{"size", "size", func() []byte {
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			if err := w.WriteHeader(&tar.Header{Name: "x", Size: 1 << 60, Format: tar.FormatGNU}); err != nil {
				t.Fatal(err)
			}
			return b.Bytes()
		}()},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newStack(t).Apply(t.Context(), bytes.NewReader(c.tar))
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v (%s), want %q", err, fault.KindOf(err), c.text)
			}
		})
	}
}

// TestXattrs keeps those that mean something and drops overlayfs's marks.
func TestXattrs(t *testing.T) {
	s := newStack(t)
	_, err := s.Apply(t.Context(), bytes.NewReader(pack(t, entry{tar.Header{Typeflag: tar.TypeReg, Name: "x", PAXRecords: map[string]string{
		"SCHILY.xattr.user.a": "\x00b", "SCHILY.xattr.security.capability": "c", "SCHILY.xattr.com.apple.x": "d",
		"SCHILY.xattr.trusted.overlay.redirect": "/etc", "SCHILY.xattr.trusted.t": "e",
	}}, ""})))
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(s.View().Lookup("x").Xattrs)
	if want := "map[security.capability:c trusted.t:e user.a:\x00b]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestLimits: each limit ends a stream that exceeds it.
func TestLimits(t *testing.T) {
	stream := pack(t, reg("a/b", "12345"), reg("b", "12345"), reg("c", ""))
	for _, l := range []layer.Limits{{3, 100, 100}, {4, 9, 100}, {4, 100, 4}} {
		spool, err := layer.NewSpool(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer spool.Close()
		if _, err := layer.NewStack(spool, l).Apply(t.Context(), bytes.NewReader(stream)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", l, err)
		}
		if _, err := layer.NewStack(spool, layer.Limits{Entries: 4, Bytes: 10, Attributes: 5}).Apply(t.Context(), bytes.NewReader(stream)); err != nil {
			t.Errorf("just within the limits: %v", err)
		}
	}
}

// TestCancel ends in the middle of a stream.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	stream := pack(t, reg("a", strings.Repeat("x", 1<<20)), reg("b", ""))
	r := io.MultiReader(bytes.NewReader(stream[:1<<19]), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil }), bytes.NewReader(stream[1<<19:]))
	if _, err := newStack(t).Apply(ctx, r); !fault.Is(err, fault.Canceled) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestSpoolOnFullDisk gives Exhausted and keeps nothing.
func TestSpoolOnFullDisk(t *testing.T) {
	roottest.Need(t, "mounting")
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	}()
	spool, err := layer.NewSpool(small)
	if err != nil {
		t.Fatal(err)
	}
	_, err = layer.NewStack(spool, layer.DefaultLimits).Apply(t.Context(), bytes.NewReader(pack(t, reg("a", strings.Repeat("x", 1<<20)))))
	if !fault.Is(err, fault.Exhausted) {
		t.Errorf("%v (%s)", err, fault.KindOf(err))
	}
	if err := spool.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(small + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// FuzzApply: no stream makes a tree that cannot be written, or a panic.
func FuzzApply(f *testing.F) {
	for _, seed := range [][]entry{
		{dir("a", 0o755), reg("a/b", "1"), symlink("l", "a"), hard("l/c", "a/b")},
		{reg(".wh.a", ""), reg("a/.wh..wh..opq", ""), reg("a/x", "")},
		{{Header: tar.Header{Typeflag: tar.TypeReg, Name: "x", PAXRecords: map[string]string{"SCHILY.xattr.user.a": "v"}}}},
		{{Header: tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}, symlink("a", "../b"), reg("a/"+strings.Repeat("n", 200), "")},
	} {
		f.Add(pack(f, seed...), pack(f, reg("a/b", "2"), reg("a/.wh.c", ""), hard("d", "a/b")))
	}
	// Memory files: removing files is slow on disks that discard.
	fd, err := unix.MemfdCreate("image", unix.MFD_CLOEXEC)
	if err != nil {
		f.Fatal(err)
	}
	out := os.NewFile(uintptr(fd), "image")
	f.Fuzz(func(t *testing.T, one, two []byte) {
		spool, err := layer.NewSpool("/dev/shm")
		if err != nil {
			t.Fatal(err)
		}
		defer spool.Close()
		s := layer.NewStack(spool, layer.Limits{Entries: 1000, Bytes: 1 << 20, Attributes: 1 << 20})
		for _, stream := range [][]byte{one, two} {
			diff, err := s.Apply(t.Context(), bytes.NewReader(stream))
			if err != nil {
				if !fault.Is(err, fault.Invalid) {
					t.Fatalf("%v (%s)", err, fault.KindOf(err))
				}
				return
			}
			for name, tree := range map[string]*erofs.Tree{"diff": diff, "view": s.View()} {
				if _, err := erofs.Write(t.Context(), out, tree); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

// TestSparseTars reads what tar(1) makes of a sparse file, in both formats.
func TestSparseTars(t *testing.T) {
	src := t.TempDir()
	f, err := os.Create(filepath.Join(src, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, off := range []int64{0, 70 << 20, 90<<20 + 3} {
		if _, err := f.WriteAt([]byte("data"), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(100<<20 + 1); err != nil {
		t.Fatal(err)
	}
	want := erofstest.Read(t, src, nil)
	for _, format := range []string{"gnu", "posix"} {
		out, err := exec.Command("tar", "-C", src, "--sparse", "--format="+format, "--numeric-owner", "-c", "sparse").Output()
		if err != nil {
			t.Fatal(err)
		}
		s := newStack(t)
		if _, err := s.Apply(t.Context(), bytes.NewReader(out)); err != nil {
			t.Fatal(err)
		}
		path := write(t, s.View())
		if st, err := os.Stat(path); err != nil || st.Size() > 1<<20 {
			t.Errorf("%s: image of %d bytes, %v", format, st.Size(), err)
		}
		got := erofstest.Read(t, erofstest.Mount(t, path), nil)
		if format == "gnu" { // which has whole seconds alone
			w := want["sparse"]
			w.Nsec = 0
			if got["sparse"] != w {
				t.Errorf("got %+v\nwant %+v", got["sparse"], w)
			}
		} else if got["sparse"] != want["sparse"] {
			t.Errorf("got %+v\nwant %+v", got["sparse"], want["sparse"])
		}
	}
}
