package image_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/sandtree/sandtree/internal/image"
	"github.com/sandtree/sandtree/internal/image/erofstest"
	"github.com/sandtree/sandtree/internal/image/store"
	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/testrootfs"
)

// TestDebian imports a real root file system and compares it with what tar(1)
// extracts.
func TestDebian(t *testing.T) {
	roottest.Need(t, "extracting device nodes")
	src := testrootfs.Path(t)
	st, _ := newStore(t)
	r := must(image.Import(t.Context(), st, "debian", src, image.Options{}))(t)
	extracted := t.TempDir()
	if out, err := exec.Command("tar", "-C", extracted, "--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", src).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	path := must(st.LayerPath(r.Layers[0].Digest))(t)
	erofstest.Fsck(t, path)
	erofstest.Diff(t, erofstest.Read(t, erofstest.Mount(t, path), nil), erofstest.Read(t, extracted, nil))
	if in := must(os.Stat(src))(t).Size(); r.Size() > in*11/10 {
		t.Errorf("a tar of %d bytes gives a layer of %d", in, r.Size())
	}
}

// BenchmarkImport imports the same root file system.
func BenchmarkImport(b *testing.B) {
	src := testrootfs.Path(b)
	st := must(store.Open(b.TempDir()))(b)
	for b.Loop() {
		r := must(image.Import(b.Context(), st, "debian", src, image.Options{}))(b)
		b.SetBytes(r.Size())
		b.ReportMetric(float64(r.Size())/1e6, "MB-image")
		must(st.Remove("debian"))(b)
	}
}
