package oci_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/oci"
)

// seeds are small archives: docker save, a layout, a root, a compressed one.
func seeds(f *testing.F) [][]byte {
	img, err := random.Image(64, 2)
	if err != nil {
		f.Fatal(err)
	}
	var saved bytes.Buffer
	if err := tarball.Write(name.MustParseReference("a:1"), img, &saved); err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		f.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		f.Fatal(err)
	}
	var archived, root bytes.Buffer
	w := tar.NewWriter(&archived)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	w = tar.NewWriter(&root)
	if err := w.WriteHeader(&tar.Header{Name: "etc/x", Mode: 0o644}); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	return [][]byte{saved.Bytes(), archived.Bytes(), root.Bytes(), z.EncodeAll(saved.Bytes(), nil)}
}

// FuzzOpen: whatever a file holds, it is an image whose layers can be read, or
// an error of kind Invalid.
func FuzzOpen(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	// Memory files: removing files is slow on disks that discard.
	fd, err := unix.MemfdCreate("archive", unix.MFD_CLOEXEC)
	if err != nil {
		f.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "archive")
	path := fmt.Sprintf("/proc/self/fd/%d", fd)
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
		img, err := oci.Open(t.Context(), path, "/dev/shm", oci.Want{Platform: "linux/amd64"})
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v (%s)", err, fault.KindOf(err))
			}
			return
		}
		defer img.Close()
		for _, l := range img.Layers {
			r, err := l.Open(t.Context(), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
				r.Close()
			}
			if err != nil && !fault.Is(err, fault.Invalid) {
				t.Fatalf("%v (%s)", err, fault.KindOf(err))
			}
		}
	})
}
