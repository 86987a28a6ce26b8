package image_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/image"
	"github.com/sandtree/sandtree/internal/image/erofstest"
	"github.com/sandtree/sandtree/internal/image/store"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// entry is a tar entry in short: regular unless the header says otherwise.
type entry struct {
	tar.Header
	content string
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.ModTime, e.Size = time.Unix(1_700_000_000, 0), int64(len(e.content))
		if e.Mode == 0 {
			e.Mode = 0o644
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

func file(name, content string) entry { return entry{tar.Header{Name: name}, content} }

// testLayers are the layers of the image of most tests.
func testLayers(t testing.TB) [][]byte {
	return [][]byte{
		pack(t, file("bin/sh", "#!"), file("etc/motd", "hello"), file("etc/gone", "x"), file("var/cache/a", "1"),
			entry{tar.Header{Name: "usr/bin/su", Mode: 0o4755}, "su"}, file("big", strings.Repeat("0123456789", 100_000))),
		pack(t, file("etc/.wh.gone", ""), file("var/cache/.wh..wh..opq", ""), file("var/cache/b", "2"),
			entry{tar.Header{Name: "etc/link", Typeflag: tar.TypeLink, Linkname: "etc/motd"}, ""}),
	}
}

// newImage makes an image for a platform.
func newImage(t testing.TB, arch string, compression types.MediaType, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	for _, l := range layers {
		opts := []tarball.LayerOption{tarball.WithMediaType(compression)}
		if compression == types.OCILayerZStd {
			opts = append(opts, tarball.WithCompression("zstd"))
		}
		layer := must(tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(l)), nil }, opts...))(t)
		img = must(mutate.Append(img, mutate.Addendum{Layer: layer, MediaType: compression}))(t)
	}
	return must(mutate.ConfigFile(img, config(t, img, arch)))(t)
}

func config(t testing.TB, img v1.Image, arch string) *v1.ConfigFile {
	t.Helper()
	c := must(img.ConfigFile())(t).DeepCopy()
	c.OS, c.Architecture = "linux", arch
	c.Config = v1.Config{Env: []string{"A=b"}, Entrypoint: []string{"/bin/sh"}, Cmd: []string{"-c", "x"}, WorkingDir: "/etc", User: "7:8"}
	return c
}

// writeLayout writes an OCI layout and returns its directory.
func writeLayout(t testing.TB, images ...v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	p := must(layout.Write(dir, empty.Index))(t)
	for _, img := range images {
		c := must(img.ConfigFile())(t)
		if err := p.AppendImage(img, layout.WithPlatform(v1.Platform{OS: c.OS, Architecture: c.Architecture})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tarOf packs a directory with tar(1) and its options.
func tarOf(t testing.TB, dir string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	args = append([]string{"-C", dir, "-cf", path}, args...)
	if out, err := exec.Command("tar", append(args, ".")...).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return path
}

func writeFile(t testing.TB, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	must(w.Write(b))(t)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	return must(zstd.NewWriter(nil))(t).EncodeAll(b, nil)
}

// newStore opens a store that must be empty of leftovers when the test ends.
func newStore(t testing.TB) (*store.Store, string) {
	t.Helper()
	dir := t.TempDir()
	st := must(store.Open(dir))(t)
	t.Cleanup(func() {
		keep := map[string]bool{}
		for _, r := range must(st.List())(t) {
			keep["images/"+r.ID+".json"] = true
			for _, l := range r.Layers {
				keep["layers/"+strings.TrimPrefix(l.Digest, "sha256:")+".erofs"] = true
			}
		}
		for _, d := range []string{"images", "layers", "tmp"} {
			for _, e := range must(os.ReadDir(filepath.Join(dir, d)))(t) {
				if !keep[d+"/"+e.Name()] {
					t.Errorf("left in the store: %s/%s", d, e.Name())
				}
			}
		}
	})
	return st, dir
}

// mount mounts an image as a sandbox would have it, read-only.
func mount(t testing.TB, st *store.Store, r image.Record) string {
	t.Helper()
	lowers := []string{t.TempDir()}
	for _, l := range r.Layers {
		lowers = append(lowers, erofstest.Mount(t, must(st.LayerPath(l.Digest))(t)))
	}
	slices.Reverse(lowers)
	at := t.TempDir()
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lowers, ":")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return at
}

// checkTree compares an image with what testLayers must give.
func checkTree(t testing.TB, st *store.Store, r image.Record) {
	t.Helper()
	at := mount(t, st, r)
	for path, want := range map[string]string{"etc/motd": "hello", "etc/link": "hello", "var/cache/b": "2", "bin/sh": "#!"} {
		if got, err := os.ReadFile(filepath.Join(at, path)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, path := range []string{"etc/gone", "var/cache/a", "etc/.wh.gone"} {
		if _, err := os.Lstat(filepath.Join(at, path)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(at, "usr/bin/su")); err != nil || fi.Mode()&os.ModeSetuid == 0 {
		t.Errorf("su: %v, %v", fi, err)
	}
}
