package image_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image"
	"github.com/sandtree/sandtree/internal/image/erofstest"
	"github.com/sandtree/sandtree/internal/image/store"
)

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
