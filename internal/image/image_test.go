package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
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

// TestImportForms imports the same image in every form it can have.
func TestImportForms(t *testing.T) {
	layers := testLayers(t)
	oci := newImage(t, runtime.GOARCH, types.OCILayer, layers...)
	dir := writeLayout(t, oci)
	tag := must(name.NewTag("example.com/test:1"))(t)
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(saved, tag, oci); err != nil {
		t.Fatal(err)
	}
	savedBytes := must(os.ReadFile(saved))(t)
	other := newImage(t, "s390x", types.OCILayer, layers[0])
	var nested v1.ImageIndex = empty.Index
	for _, i := range []v1.Image{other, oci} {
		c := must(i.ConfigFile())(t)
		nested = mutate.AppendManifests(nested, mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: c.Architecture}}})
	}
	nestedDir := t.TempDir()
	if err := must(layout.Write(nestedDir, empty.Index))(t).AppendIndex(nested); err != nil {
		t.Fatal(err)
	}
	st, _ := newStore(t)
	var first image.Record
	for i, c := range []struct{ form, src string }{
		{"layout", dir},
		{"layout of several platforms", writeLayout(t, other, oci)},
		{"layout with an index in the index", nestedDir},
		{"layout with zstd", writeLayout(t, newImage(t, runtime.GOARCH, types.OCILayerZStd, layers...))},
		{"layout without compression", writeLayout(t, newImage(t, runtime.GOARCH, types.OCIUncompressedLayer, layers...))},
		{"tar of a layout", tarOf(t, dir)},
		{"tar.gz of a layout", tarOf(t, dir, "-z")},
		{"docker save", saved},
		{"docker save, gzip", writeFile(t, gzipped(t, savedBytes))},
		{"docker save, zstd", writeFile(t, zstded(t, savedBytes))},
	} {
		t.Run(c.form, func(t *testing.T) {
			last := image.Progress{}
			r, err := image.Import(t.Context(), st, fmt.Sprintf("n%d", i), c.src, image.Options{Progress: func(p image.Progress) {
				if p.Done < last.Done || p.Layer < last.Layer {
					t.Errorf("progress goes back: %+v after %+v", p, last)
				}
				last = p
			}})
			if err != nil {
				t.Fatal(err)
			}
			if last.Layer != 2 || last.Layers != 2 || last.Done != last.Total || last.Total == 0 {
				t.Errorf("progress ends at %+v", last)
			}
			want := store.Config{Env: []string{"A=b"}, Entrypoint: []string{"/bin/sh"}, Cmd: []string{"-c", "x"}, WorkingDir: "/etc", User: "7:8"}
			if fmt.Sprint(r.Config) != fmt.Sprint(want) || r.Platform != "linux/"+runtime.GOARCH || r.Source != c.src || len(r.Layers) != 2 {
				t.Errorf("%+v", r)
			}
			if i == 0 {
				first = r
				checkTree(t, st, r)
			} else if !slices.Equal(r.Layers, first.Layers) {
				t.Errorf("layers %v, want those of the first import, %v", r.Layers, first.Layers)
			}
		})
	}
	t.Run("flattened", func(t *testing.T) {
		r := must(image.Import(t.Context(), st, "flat", dir, image.Options{Flatten: true}))(t)
		if len(r.Layers) != 1 {
			t.Errorf("%d layers", len(r.Layers))
		}
		checkTree(t, st, r)
	})
}

// TestImportRoots imports root file systems: tars and a directory.
func TestImportRoots(t *testing.T) {
	st, _ := newStore(t)
	root := pack(t, file("bin/sh", "#!"), file("etc/motd", "hello"))
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	var layers []store.Layer
	for i, b := range [][]byte{root, gzipped(t, root), zstded(t, root)} {
		r := must(image.Import(t.Context(), st, fmt.Sprint("t", i), writeFile(t, b), image.Options{}))(t)
		layers = append(layers, r.Layers...)
	}
	if len(layers) != 3 || layers[0] != layers[1] || layers[0] != layers[2] {
		t.Errorf("%v", layers)
	}
	r := must(image.Import(t.Context(), st, "dir", src, image.Options{}))(t)
	if got, err := os.ReadFile(filepath.Join(mount(t, st, r), "file")); err != nil || string(got) != "x" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestStreams imports what comes as a stream: archives and roots.
func TestStreams(t *testing.T) {
	st, _ := newStore(t)
	large := append(testLayers(t), pack(t, file("x", strings.Repeat("0123456789abcdef", 1<<20)))) // more than is read to see what it is
	dir := writeLayout(t, newImage(t, runtime.GOARCH, types.OCIUncompressedLayer, large...))
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(saved, must(name.NewTag("a:1"))(t), newImage(t, runtime.GOARCH, types.OCIUncompressedLayer, large...)); err != nil {
		t.Fatal(err)
	}
	want := must(image.Import(t.Context(), st, "want", dir, image.Options{}))(t)
	blobsFirst := filepath.Join(t.TempDir(), "blobs-first.tar")
	if out, err := exec.Command("tar", "-C", dir, "-cf", blobsFirst, "blobs", "index.json", "oci-layout").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	for i, src := range []string{tarOf(t, dir), tarOf(t, dir, "-z"), blobsFirst, saved} {
		r := must(image.ImportStream(t.Context(), st, fmt.Sprint("n", i), "upload", must(os.Open(src))(t), 0, image.Options{}))(t)
		if !slices.Equal(r.Layers, want.Layers) {
			t.Errorf("%s: %v, want %v", src, r.Layers, want.Layers)
		}
	}
	var packed bytes.Buffer
	if err := image.Pack(t.Context(), &packed, dir); err != nil {
		t.Fatal(err)
	}
	if r := must(image.ImportStream(t.Context(), st, "packed", "upload", &packed, 0, image.Options{}))(t); !slices.Equal(r.Layers, want.Layers) {
		t.Errorf("packed: %v, want %v", r.Layers, want.Layers)
	}
	packed.Reset()
	if err := image.Pack(t.Context(), &packed, "/etc/ssl"); err != nil {
		t.Fatal(err)
	}
	etc := must(image.Import(t.Context(), st, "etc", "/etc/ssl", image.Options{}))(t)
	if r := must(image.ImportStream(t.Context(), st, "packed-etc", "upload", &packed, 0, image.Options{}))(t); !slices.Equal(r.Layers, etc.Layers) {
		t.Errorf("packed: %v, want %v", r.Layers, etc.Layers)
	}
	root := pack(t, file("etc/x", strings.Repeat("0123456789abcdef", 1<<20)), file("y", "z"))
	want = must(image.Import(t.Context(), st, "root", writeFile(t, root), image.Options{}))(t)
	for i, b := range [][]byte{root, gzipped(t, root)} {
		var last image.Progress
		r := must(image.ImportStream(t.Context(), st, fmt.Sprint("r", i), "upload", bytes.NewReader(b), int64(len(b)),
			image.Options{Progress: func(p image.Progress) { last = p }}))(t)
		if !slices.Equal(r.Layers, want.Layers) || last.Done != int64(len(b)) || last.Total != last.Done {
			t.Errorf("%v, want %v; %+v", r.Layers, want.Layers, last)
		}
		if _, err := image.ImportStream(t.Context(), st, "bad", "upload", bytes.NewReader(b[:len(b)/2]), 0, image.Options{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("truncated: %v", err)
		}
	}
}

// TestEqualLayers has layers twice, which overlayfs would refuse.
func TestEqualLayers(t *testing.T) {
	st, _ := newStore(t)
	nothing := pack(t)
	again := pack(t, file("etc/motd", "hello"), file("etc/.wh.gone", ""))
	layers := [][]byte{pack(t, file("etc/gone", "1"), file("etc/kept", "2")), nothing, again, nothing, pack(t, file("etc/gone", "3"), file("etc/motd", "4")), again, nothing}
	r := must(image.Import(t.Context(), st, "n", writeLayout(t, newImage(t, runtime.GOARCH, types.OCILayer, layers...)), image.Options{}))(t)
	flat := must(image.Import(t.Context(), st, "flat", writeLayout(t, newImage(t, runtime.GOARCH, types.OCILayer, layers...)), image.Options{Flatten: true}))(t)
	if len(r.Layers) != 4 {
		t.Errorf("%d layers", len(r.Layers))
	}
	erofstest.Diff(t, erofstest.Read(t, mount(t, st, r), nil), erofstest.Read(t, mount(t, st, flat), nil))
}

// TestBadSources: each gives a clear error and leaves nothing in the store.
func TestBadSources(t *testing.T) {
	layers := testLayers(t)
	good := newImage(t, runtime.GOARCH, types.OCILayer, layers...)
	broken := func(edit func(dir string, m *v1.Manifest)) string {
		dir := writeLayout(t, good)
		edit(dir, must(good.Manifest())(t))
		return dir
	}
	blob := func(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }
	rewrite := func(path string, edit func([]byte) []byte) {
		b := must(os.ReadFile(path))(t)
		if err := os.WriteFile(path, edit(bytes.Clone(b)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	half := func(b []byte) []byte { return b[:len(b)/2] }
	flip := func(b []byte) []byte { b[len(b)/2] ^= 0x40; return b }
	root := pack(t, file("bin/sh", strings.Repeat("x", 10_000)))
	wrongDiff := config(t, good, runtime.GOARCH)
	wrongDiff.RootFS.DiffIDs = slices.Clone(wrongDiff.RootFS.DiffIDs)
	wrongDiff.RootFS.DiffIDs[1].Hex = strings.Repeat("0", 64)
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(saved, must(name.NewTag("a:1"))(t), good); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, src, text string
		kind            fault.Kind
	}{
		{"another architecture", writeLayout(t, newImage(t, "s390x", types.OCILayer, layers[0])), "image is for linux/s390x, not for linux/" + runtime.GOARCH, fault.Invalid},
		{"root of another architecture", writeFile(t, pack(t, file("usr/bin/dash", "\x7fELF\x02\x02\x01"+strings.Repeat("\x00", 11)+"\x00\x16rest"),
			entry{tar.Header{Name: "usr/bin/sh", Typeflag: tar.TypeSymlink, Linkname: "dash"}, ""},
			entry{tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"}, ""})), "image is for s390x, going by its /bin/sh, not for " + runtime.GOARCH, fault.Invalid},
		{"truncated layer", broken(func(d string, m *v1.Manifest) { rewrite(blob(d, m.Layers[1].Digest), half) }), "truncated", fault.Invalid},
		{"empty layer", broken(func(d string, m *v1.Manifest) {
			rewrite(blob(d, m.Layers[1].Digest), func([]byte) []byte { return nil })
		}), "digest", fault.Invalid},
		{"damaged layer", broken(func(d string, m *v1.Manifest) { rewrite(blob(d, m.Layers[0].Digest), flip) }), "layer 1 of 2", fault.Invalid},
		{"other layer", broken(func(d string, m *v1.Manifest) {
			rewrite(blob(d, m.Layers[1].Digest), func([]byte) []byte { return gzipped(t, layers[1]) })
		}), "digest", fault.Invalid},
		{"wrong diff id", writeLayout(t, must(mutate.ConfigFile(good, wrongDiff))(t)), "digest", fault.Invalid},
		{"missing layer", broken(func(d string, m *v1.Manifest) {
			if err := os.Remove(blob(d, m.Layers[1].Digest)); err != nil {
				t.Fatal(err)
			}
		}), "layer 2 of 2", fault.Invalid},
		{"damaged configuration", broken(func(d string, m *v1.Manifest) { rewrite(blob(d, m.Config.Digest), flip) }), "damaged", fault.Invalid},
		{"layout without image", writeLayout(t), "no image", fault.Invalid},
		{"two images", writeLayout(t, good, newImage(t, runtime.GOARCH, types.OCILayer, layers[0])), "2 images", fault.Invalid},
		{"link out of the layout", broken(func(d string, m *v1.Manifest) {
			p := blob(d, m.Layers[0].Digest)
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/passwd", p); err != nil {
				t.Fatal(err)
			}
		}), "escapes", fault.Invalid},
		{"index.json that is none", broken(func(d string, _ *v1.Manifest) {
			rewrite(filepath.Join(d, "index.json"), func([]byte) []byte { return []byte("{") })
		}), "index", fault.Invalid},
		{"truncated archive", writeFile(t, half(must(os.ReadFile(saved))(t))), "truncated", fault.Invalid},
		{"truncated root tar", writeFile(t, root[:5000]), "truncated", fault.Invalid},
		{"truncated root tar.gz", writeFile(t, half(gzipped(t, append(bytes.Clone(root), layers[0]...)))), "truncated", fault.Invalid},
		{"bad gzip", writeFile(t, append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0}, strings.Repeat("\xff", 100)...)), "damaged gzip", fault.Invalid},
		{"gzip with a wrong checksum", writeFile(t, func() []byte { b := gzipped(t, root); b[len(b)-6] ^= 1; return b }()), "damaged gzip", fault.Invalid},
		{"truncated zstd", writeFile(t, half(zstded(t, root))), "zstd", fault.Invalid},
		{"xz", writeFile(t, []byte("\xfd7zXZ\x00rest")), "xz", fault.Invalid},
		{"no tar", writeFile(t, bytes.Repeat([]byte("text\n"), 1000)), "not a tar", fault.Invalid},
		{"empty file", writeFile(t, nil), "no files", fault.Invalid},
		{"empty directory", t.TempDir(), "no files", fault.Invalid},
		{"nothing", filepath.Join(t.TempDir(), "absent"), "no such file", fault.NotFound},
		{"fifo", fifo, "regular file", fault.Invalid},
	} {
		t.Run(c.what, func(t *testing.T) {
			st, _ := newStore(t)
			_, err := image.Import(t.Context(), st, "n", c.src, image.Options{})
			if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v (%s), want %q (%s)", err, fault.KindOf(err), c.text, c.kind)
			}
		})
	}
}

// TestFullDisk imports into a store with no room for it: nothing stays, and a
// smaller image fits.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	}()
	st := must(store.Open(small))(t)
	for _, size := range []int{700_000, 3_000_000} { // the spool fits, the layer not; neither fits
		_, err := image.Import(t.Context(), st, "n", writeFile(t, pack(t, file("x", strings.Repeat("x", size)))), image.Options{})
		if !fault.Is(err, fault.Exhausted) {
			t.Errorf("%v (%s)", err, fault.KindOf(err))
		}
		for _, d := range []string{"images", "layers", "tmp"} {
			if left := must(os.ReadDir(filepath.Join(small, d)))(t); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	}
	must(image.Import(t.Context(), st, "n", writeFile(t, pack(t, file("x", "x"))), image.Options{}))(t)
}

// TestCancelled ends an import in the middle.
func TestCancelled(t *testing.T) {
	st, _ := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := image.Import(ctx, st, "n", writeLayout(t, newImage(t, runtime.GOARCH, types.OCILayer, testLayers(t)...)),
		image.Options{Progress: func(p image.Progress) {
			if p.Layer == 2 {
				cancel()
			}
		}})
	if !fault.Is(err, fault.Canceled) {
		t.Errorf("%v (%s)", err, fault.KindOf(err))
	}
}

// TestNames: a taken name and a bad one are refused before anything is read.
func TestNames(t *testing.T) {
	st, _ := newStore(t)
	src := writeFile(t, pack(t, file("x", "x")))
	must(image.Import(t.Context(), st, "n", src, image.Options{}))(t)
	if _, err := image.Import(t.Context(), st, "n", "/absent", image.Options{}); !fault.Is(err, fault.Exists) {
		t.Errorf("%v", err)
	}
	if _, err := image.Import(t.Context(), st, "a b", "/absent", image.Options{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
	if _, err := image.Import(t.Context(), st, "p", src, image.Options{Platform: "linux"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
}

// TestPull takes images from a registry on this machine.
func TestPull(t *testing.T) {
	layers := testLayers(t)
	oci := newImage(t, runtime.GOARCH, types.OCILayer, layers...)
	foreign := newImage(t, "s390x", types.OCILayer, layers[0])
	falseLayer := gzipped(t, layers[0])
	lastLayer := must(oci.Manifest())(t).Layers[1].Digest.Hex
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	var stall, stopped = make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/secret/"):
			http.Error(w, `{"errors":[{"code":"DENIED"}]}`, http.StatusForbidden)
		case strings.Contains(r.URL.Path, "/slow/blobs/") && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, must(oci.Manifest())(t).Layers[0].Digest.Hex):
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			close(stall)
			<-r.Context().Done()
			close(stopped)
		case strings.Contains(r.URL.Path, "/torn/blobs/") && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, lastLayer):
			w.Header().Set("Content-Length", "100000")
			_, _ = w.Write([]byte("\x1f\x8b"))
			panic(http.ErrAbortHandler) // closes the connection
		case strings.Contains(r.URL.Path, "/false/blobs/") && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, lastLayer):
			_, _ = w.Write(falseLayer)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for repo, img := range map[string]v1.Image{"one:1": oci, "foreign:1": foreign, "slow:1": oci, "torn:1": oci, "false:1": oci} {
		if err := remote.Write(must(name.ParseReference(host+"/"+repo))(t), img); err != nil {
			t.Fatal(err)
		}
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: oci, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	if err := remote.WriteIndex(must(name.ParseReference(host+"/many:1"))(t), index); err != nil {
		t.Fatal(err)
	}
	st, _ := newStore(t)
	one := must(image.Pull(t.Context(), st, "one", host+"/one:1", image.Options{}))(t)
	checkTree(t, st, one)
	var last image.Progress
	many := must(image.Pull(t.Context(), st, "many", host+"/many:1", image.Options{Progress: func(p image.Progress) { last = p }}))(t)
	if !slices.Equal(one.Layers, many.Layers) || last.Done != last.Total || last.Done == 0 {
		t.Errorf("%+v %+v %+v", one, many, last)
	}
	for _, c := range []struct {
		ref, text string
		kind      fault.Kind
	}{
		{host + "/foreign:1", "image is for linux/s390x, not for linux/", fault.Invalid},
		{host + "/torn:1", "layer 2 of 2", fault.Unavailable},
		{host + "/false:1", "damaged", fault.Invalid},
		{host + "/absent:1", "absent", fault.NotFound},
		{host + "/secret:1", "secret", fault.Permission},
		{"127.0.0.1:1/x:1", "refused", fault.Unavailable},
		{"UPPER CASE", "reference", fault.Invalid},
	} {
		_, err := image.Pull(t.Context(), st, "bad", c.ref, image.Options{})
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v (%s)", c.ref, err, fault.KindOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-stall; cancel() }()
	if _, err := image.Pull(ctx, st, "slow", host+"/slow:1", image.Options{}); !fault.Is(err, fault.Canceled) {
		t.Errorf("%v (%s)", err, fault.KindOf(err))
	}
	<-stopped
}
