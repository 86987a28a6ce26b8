package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image"
	"github.com/sandtree/sandtree/internal/image/store"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

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
	roottest.Need(t, "mounting")
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
