package erofs_test

import (
	"cmp"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/image/erofs"
)

// BenchmarkDirectory packs a directory of the machine: /usr/share, or the one
// that SANDTREE_BENCH_TREE names. It reports the image's size too.
func BenchmarkDirectory(b *testing.B) {
	src := cmp.Or(os.Getenv("SANDTREE_BENCH_TREE"), "/usr/share")
	f, err := os.Create(filepath.Join(b.TempDir(), "image.erofs"))
	must(b, err)
	defer f.Close()
	for b.Loop() {
		must(b, f.Truncate(0))
		d, err := erofs.Scan(b.Context(), src)
		must(b, err)
		info, err := erofs.Write(b.Context(), f, &d.Tree)
		must(b, err)
		must(b, d.Close())
		b.ReportMetric(float64(info.Size)/1e6, "MB-image")
		b.ReportMetric(float64(info.Inodes), "inodes")
		b.SetBytes(info.Size)
	}
}
