package transfer_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/transfer"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// directory does file operations in a directory of this machine, with the
// rules that a supervisor has: no path leaves it.
func directory(t testing.TB, dir string) transfer.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return func(_ context.Context, req control.FileRequest) (r control.FileReply, f *os.File, err error) {
		name := strings.TrimPrefix(filepath.Clean("/"+req.Path), "/")
		if name == "" {
			name = "."
		}
		switch req.Op {
		case control.FileStat:
			stat := root.Stat
			if req.NoFollow {
				stat = root.Lstat
			}
			var i fs.FileInfo
			if i, err = stat(name); err == nil {
				r.Entry = entry(i)
			}
		case control.FileList:
			var es []fs.DirEntry
			es, err = fs.ReadDir(root.FS(), name)
			for _, e := range es {
				if i, err := e.Info(); err == nil {
					r.Entries = append(r.Entries, entry(i))
				}
			}
		case control.FileOpen:
			f, err = root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		case control.FileCreate:
			if f, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
				err = unix.Fchmod(int(f.Fd()), req.Mode)
			}
		case control.FileMkdir:
			if err = root.Mkdir(name, 0o700); err == nil {
				mode := fs.FileMode(req.Mode & 0o777)
				if req.Mode&unix.S_ISVTX != 0 {
					mode |= fs.ModeSticky
				}
				err = root.Chmod(name, mode)
			}
		case control.FileSymlink:
			err = root.Symlink(req.Target, name)
		case control.FileReadlink:
			r.Entry.Target, err = root.Readlink(name)
		case control.FileRename:
			err = root.Rename(name, strings.TrimPrefix(filepath.Clean("/"+req.Target), "/"))
		case control.FileRemove:
			err = root.Remove(name)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = fault.New(fault.NotFound, "%w", err)
		case errors.Is(err, fs.ErrExist):
			err = fault.New(fault.Exists, "%w", err)
		case err != nil:
			err = fault.New(fault.Invalid, "%w", err)
		}
		return r, f, err
	}
}

func entry(i fs.FileInfo) control.Entry {
	st := i.Sys().(*syscall.Stat_t)
	return control.Entry{Name: i.Name(), Mode: st.Mode, UID: int(st.Uid), GID: int(st.Gid), Size: st.Size, MTime: i.ModTime()}
}

// fill makes a small tree and returns what show prints of it.
func fill(t *testing.T, dir string) {
	t.Helper()
	long := strings.Repeat("long", 40)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "src", "deep", long), 0o755),
		os.WriteFile(filepath.Join(dir, "src", "a"), []byte("content"), 0o640),
		os.WriteFile(filepath.Join(dir, "src", "deep", long, long), bytes.Repeat([]byte("x"), 1<<20), 0o700),
		os.WriteFile(filepath.Join(dir, "src", "empty"), nil, 0o444),
		os.Chmod(filepath.Join(dir, "src", "deep"), 0o1777|fs.ModeSticky),
		os.Symlink("/etc/passwd", filepath.Join(dir, "src", "abs")),
		os.Symlink("a", filepath.Join(dir, "src", "rel")),
		os.Symlink("nowhere", filepath.Join(dir, "src", "dangling")),
		unix.Mkfifo(filepath.Join(dir, "src", "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func show(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i, err := d.Info()
		if err != nil || i.Mode()&fs.ModeNamedPipe != 0 || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%s %v", rel, i.Mode())
		switch {
		case i.Mode().IsRegular():
			c, err := os.ReadFile(p)
			fmt.Fprintf(&b, " %d %x %v", len(c), c[:min(len(c), 8)], err)
		case i.Mode()&fs.ModeSymlink != 0:
			l, _ := os.Readlink(p)
			b.WriteString(" " + l)
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestThereAndBack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	fill(t, from)
	var b bytes.Buffer
	if err := directory(t, from).Pack(t.Context(), "/src", false, &b); err != nil {
		t.Fatal(err)
	}
	c, err := directory(t, to).Unpack(t.Context(), "/", nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	if want := show(t, from); want != show(t, to) {
		t.Errorf("%s\nbecame\n%s", want, show(t, to))
	}
	if c.Files != 9 || c.Bytes != 7+1<<20 {
		t.Errorf("counted %+v", c)
	}
}

func TestPackOneFileOrLink(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	r := directory(t, dir)
	names := func(path string, follow bool) (all []string) {
		t.Helper()
		var b bytes.Buffer
		if err := r.Pack(t.Context(), path, follow, &b); err != nil {
			t.Fatal(err)
		}
		for tr := tar.NewReader(&b); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				return all
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s %c %s", h.Name, h.Typeflag, h.Linkname))
		}
	}
	for _, c := range []struct {
		path   string
		follow bool
		want   string
	}{
		{"/src/a", false, "a 0 "}, {"src/../src/a", false, "a 0 "}, {"/src/rel", false, "rel 2 a"}, {"/src/rel", true, "rel 0 "},
	} {
		if got := strings.Join(names(c.path, c.follow), ","); got != c.want {
			t.Errorf("pack %s: %q, want %q", c.path, got, c.want)
		}
	}
	if got := names("/", false); got[0] != "rootfs/ 5 " || !strings.HasPrefix(got[1], "rootfs/src/ 5") {
		t.Errorf("pack /: %q", got)
	}
	for path, want := range map[string]fault.Kind{"/none": fault.NotFound, "/src/fifo": fault.Invalid, "": fault.Invalid} {
		if err := r.Pack(t.Context(), path, false, io.Discard); !fault.Is(err, want) {
			t.Errorf("pack %q: %v", path, err)
		}
	}
	if _, err := r.Open(t.Context(), "/src/fifo"); !fault.Is(err, fault.Invalid) {
		t.Errorf("a pipe is opened as a file: %v", err)
	}
}

// archive makes a tar of headers; regular files hold their own names.
func archive(t testing.TB, hs ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(w, h.Name)
		}
	}
	w.Close()
	return &b
}

func TestHostileNamesStayBelow(t *testing.T) {
	outside := t.TempDir()
	dir := filepath.Join(outside, "root")
	if err := os.MkdirAll(filepath.Join(dir, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"../../up", "/abs", "..", "a/../../up2", "./x"} {
		_, err := directory(t, dir).Unpack(t.Context(), "/in", nil, archive(t, tar.Header{Name: name, Typeflag: tar.TypeReg}))
		t.Logf("%s: %v", name, err)
	}
	// A link of the tar's own leads elsewhere in the sandbox, never out of it.
	_, err := directory(t, dir).Unpack(t.Context(), "/in", nil, archive(t,
		tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "../.."},
		tar.Header{Name: "link/escaped", Typeflag: tar.TypeReg}))
	t.Log(err)
	if es, _ := os.ReadDir(outside); len(es) != 1 {
		t.Errorf("outside: %v", es)
	}
	if es, _ := os.ReadDir(dir); len(es) != 1 {
		t.Errorf("beside the directory: %v", es)
	}
	if got := show(t, filepath.Join(dir, "in")); !strings.Contains(got, "abs ") || !strings.Contains(got, "up ") || !strings.Contains(got, "x ") {
		t.Errorf("in the directory: %s", got)
	}
}

func TestUnpackRefuses(t *testing.T) {
	dir := t.TempDir()
	r := directory(t, dir)
	for what, src := range map[string]io.Reader{
		"device":   archive(t, tar.Header{Name: "dev", Typeflag: tar.TypeBlock}),
		"pipe":     archive(t, tar.Header{Name: "p", Typeflag: tar.TypeFifo}),
		"no tar":   strings.NewReader(strings.Repeat("no tar", 1000)),
		"half":     io.LimitReader(archive(t, tar.Header{Name: "half", Typeflag: tar.TypeReg}), 514),
		"NUL name": archive(t, tar.Header{Name: "x", Typeflag: tar.TypeDir}, tar.Header{Name: "x", Typeflag: tar.TypeReg}),
	} {
		if _, err := r.Unpack(t.Context(), "/", nil, src); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if _, err := r.Unpack(t.Context(), "/none", nil, archive(t)); !fault.Is(err, fault.NotFound) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Unpack(t.Context(), "/file", nil, archive(t)); !fault.Is(err, fault.Invalid) {
		t.Errorf("a file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Unpack(ctx, "/", nil, archive(t, tar.Header{Name: "a", Typeflag: tar.TypeReg})); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// A copy that ends in the middle leaves what was there, or nothing.
func TestNoHalfFiles(t *testing.T) {
	dir := t.TempDir()
	r := directory(t, dir)
	big := bytes.Repeat([]byte("x"), 1<<20)
	broken := errors.New("broken")
	for _, size := range []int{10, 1 << 20} {
		for _, name := range []string{"/new", "/old"} {
			if err := os.WriteFile(filepath.Join(dir, "old"), []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			src := io.MultiReader(bytes.NewReader(big[:size]), iotest.ErrReader(broken))
			if _, err := r.WriteFile(t.Context(), name, 0o644, 0, 0, src); !errors.Is(err, broken) {
				t.Errorf("%d bytes to %s: %v", size, name, err)
			}
			if got := show(t, dir); got != "old -rw------- 3 6f6c64 <nil>\n" {
				t.Errorf("%d bytes to %s left\n%s", size, name, got)
			}
		}
	}
	if n, err := r.WriteFile(t.Context(), "/old", 0o644, 0, 0, bytes.NewReader(big)); err != nil || n != 1<<20 {
		t.Errorf("%d, %v", n, err)
	}
	if got := show(t, dir); got != "old -rw-r--r-- 1048576 7878787878787878 <nil>\n" {
		t.Errorf("the whole left\n%s", got)
	}
}

func TestUnpackMerges(t *testing.T) {
	dir := t.TempDir()
	r := directory(t, dir)
	for range 2 {
		c, err := r.Unpack(t.Context(), "/", nil, archive(t,
			tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
			tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
			tar.Header{Name: "d/f", Typeflag: tar.TypeReg},
			tar.Header{Name: "d/soft", Typeflag: tar.TypeSymlink, Linkname: "f"},
			tar.Header{Name: "d/hard", Typeflag: tar.TypeLink, Linkname: "d/f"}))
		if err != nil || c.Files != 5 {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	_, err := r.Unpack(t.Context(), "/", nil, archive(t, tar.Header{Name: "d/soft", Typeflag: tar.TypeSymlink, Linkname: "other"}))
	if !fault.Is(err, fault.Exists) {
		t.Errorf("another link in the place of one: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "d", "hard")); err != nil || string(b) != "d/f" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestParseOwner(t *testing.T) {
	if o, err := transfer.ParseOwner("5:7"); err != nil || *o != (transfer.Owner{UID: 5, GID: 7}) {
		t.Errorf("%v, %v", o, err)
	}
	if o, err := transfer.ParseOwner(""); err != nil || o != nil {
		t.Errorf("%v, %v", o, err)
	}
	for _, s := range []string{"5", "a:b", "-1:0", "5:", ":", "4294967295:0"} {
		if _, err := transfer.ParseOwner(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, tar.Header{Name: "a/b", Typeflag: tar.TypeReg}, tar.Header{Name: "../l", Typeflag: tar.TypeSymlink, Linkname: "/"}).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		outside := t.TempDir()
		dir := filepath.Join(outside, "root")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_, _ = directory(t, dir).Unpack(t.Context(), "/", nil, bytes.NewReader(b))
		if es, _ := os.ReadDir(outside); len(es) != 1 {
			t.Errorf("outside: %v", es)
		}
	})
}
