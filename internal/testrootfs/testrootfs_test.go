package testrootfs_test

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"testing"

	"github.com/sandtree/sandtree/internal/testrootfs"
)

func TestRootHoldsWhatTestsRun(t *testing.T) {
	f, err := os.Open(testrootfs.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()

	want := map[string]bool{"bash": true, "python3": true, "ps": true, "sha256sum": true, "flock": true}
	for r := tar.NewReader(f); len(want) > 0; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if dir := path.Base(path.Dir(h.Name)); dir == "bin" {
			delete(want, path.Base(h.Name))
		}
	}
	for name := range want {
		t.Errorf("no %s in the root", name)
	}
}
