package tarball_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/sandtree/sandtree/internal/cli/tarball"
	"github.com/sandtree/sandtree/internal/fault"
)

func TestRoundTrip(t *testing.T) {
	src, dst := filepath.Join(t.TempDir(), "src"), t.TempDir()
	must(t, os.MkdirAll(filepath.Join(src, "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "a"), []byte("hello"), 0o640))
	must(t, os.Link(filepath.Join(src, "a"), filepath.Join(src, "sub/hard")))
	must(t, os.Symlink("../a", filepath.Join(src, "sub/soft")))
	l, err := net.Listen("unix", filepath.Join(src, "sub/socket")) // is left out
	must(t, err)
	defer func() { _ = l.Close() }()
	past := time.Unix(1_000_000_000, 0)
	must(t, os.Chtimes(filepath.Join(src, "sub"), past, past))
	must(t, os.Chmod(filepath.Join(src, "sub"), 0o555))

	var buf bytes.Buffer
	must(t, tarball.Pack(&buf, src, "top"))
	n, err := tarball.Unpack(dst, "other", false, &buf)
	if err != nil {
		t.Fatal(err)
	}
	if n.Files != 3 || n.Bytes != 5 {
		t.Errorf("count %+v", n)
	}
	b, err := os.ReadFile(filepath.Join(dst, "other/sub/soft"))
	if err != nil || string(b) != "hello" {
		t.Errorf("through the link: %q, %v", b, err)
	}
	a, _ := os.Stat(filepath.Join(dst, "other/a"))
	hard, _ := os.Stat(filepath.Join(dst, "other/sub/hard"))
	if !os.SameFile(a, hard) || a.Mode() != 0o640 {
		t.Errorf("hard link lost, or mode %v", a.Mode())
	}
	sub, _ := os.Stat(filepath.Join(dst, "other/sub"))
	if sub.Mode().Perm() != 0o555 || !sub.ModTime().Equal(past) {
		t.Errorf("directory: %v %v", sub.Mode(), sub.ModTime())
	}
}

func TestContentAlone(t *testing.T) {
	src := t.TempDir()
	must(t, os.WriteFile(filepath.Join(src, "f"), nil, 0o600))
	var buf bytes.Buffer
	must(t, tarball.Pack(&buf, src, "."))
	h, err := tar.NewReader(&buf).Next()
	if err != nil || h.Name != "f" {
		t.Errorf("%+v, %v", h, err)
	}
}

// A sandbox may send any tar. None reaches a file outside.
func TestHostileTars(t *testing.T) {
	reg := func(name string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4755, Size: 1}
	}
	for name, hs := range map[string][]*tar.Header{
		"dots":        {reg("x/../../../evil")},
		"absolute":    {reg("/evil")},
		"link out":    {{Name: "x/out", Typeflag: tar.TypeSymlink, Linkname: "../.."}, reg("x/out/evil")},
		"absolute ln": {{Name: "x/out", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, reg("x/out/evil")},
		"hard link":   {{Name: "x/h", Typeflag: tar.TypeLink, Linkname: "../../victim"}},
		"device":      {{Name: "x/d", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"fifo":        {{Name: "x/p", Typeflag: tar.TypeFifo}},
	} {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			dst := filepath.Join(outer, "dst")
			must(t, os.MkdirAll(filepath.Join(dst, "x"), 0o755))
			must(t, os.WriteFile(filepath.Join(outer, "victim"), []byte("v"), 0o600))
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			for _, h := range hs {
				must(t, w.WriteHeader(h))
				if h.Size > 0 {
					_, err := w.Write([]byte("e"))
					must(t, err)
				}
			}
			must(t, w.Close())
			_, _ = tarball.Unpack(dst, "x", false, &buf)

			entries, err := os.ReadDir(outer)
			must(t, err)
			if len(entries) != 2 {
				t.Errorf("outside: %v", entries)
			}
			must(t, filepath.WalkDir(dst, func(_ string, d fs.DirEntry, err error) error {
				must(t, err)
				if i, err := d.Info(); err == nil && i.Mode()&(fs.ModeSetuid|fs.ModeDevice|fs.ModeNamedPipe) != 0 {
					t.Errorf("%s: %v", d.Name(), i.Mode())
				}
				return nil
			}))
		})
	}
}

func TestBrokenTar(t *testing.T) {
	_, err := tarball.Unpack(t.TempDir(), "x", false, bytes.NewReader(bytes.Repeat([]byte("no tar "), 200)))
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("error %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	_ = w.WriteHeader(&tar.Header{Name: "a/../b", Typeflag: tar.TypeSymlink, Linkname: "/"})
	_ = w.WriteHeader(&tar.Header{Name: "a/b/c", Typeflag: tar.TypeReg, Size: 3})
	_, _ = w.Write([]byte("abc"))
	_ = w.Close()
	f.Add(buf.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		outer := t.TempDir()
		dst := filepath.Join(outer, "dst")
		must(t, os.Mkdir(dst, 0o755))
		_, _ = tarball.Unpack(dst, "x", false, bytes.NewReader(b))
		if entries, err := os.ReadDir(outer); err != nil || len(entries) != 1 {
			t.Errorf("outside: %v, %v", entries, err)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestDecompress(t *testing.T) {
	var zipped, zstded bytes.Buffer
	g := gzip.NewWriter(&zipped)
	_, _ = g.Write([]byte("content"))
	must(t, g.Close())
	z, err := zstd.NewWriter(&zstded)
	must(t, err)
	_, _ = z.Write([]byte("content"))
	must(t, z.Close())
	for name, in := range map[string][]byte{"gzip": zipped.Bytes(), "zstd": zstded.Bytes(), "plain": []byte("content"), "short": []byte("c")} {
		r, compressed, err := tarball.Decompress(io.NopCloser(bytes.NewReader(in)))
		if err != nil {
			t.Fatal(name, err)
		}
		b, err := io.ReadAll(r)
		must(t, r.Close())
		if err != nil || !bytes.HasPrefix([]byte("content"), b) || compressed != (name == "gzip" || name == "zstd") {
			t.Errorf("%s: %q, compressed %v, %v", name, b, compressed, err)
		}
	}
}
