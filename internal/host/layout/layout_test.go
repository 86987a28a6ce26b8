package layout_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/layout"
)

func TestDefault(t *testing.T) {
	l, err := layout.Of("")
	if err != nil {
		t.Fatal(err)
	}
	if l.Name != "default" || l.Socket() != "/run/sandtree/default/api.sock" {
		t.Errorf("name %q, socket %q", l.Name, l.Socket())
	}
	same, err := layout.Of(layout.DefaultState + "/.")
	if err != nil || same != l {
		t.Errorf("%+v, %v", same, err)
	}
}

func TestOneDirectoryHasOneName(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	want, err := layout.Of(filepath.Join(dir, "not/there"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir + "/link/not/there", "not/there", "./link/../not/there"} {
		got, err := layout.Of(p)
		if err != nil || got != want {
			t.Errorf("Of(%q) = %+v, %v, want %+v", p, got, err, want)
		}
	}
	other, err := layout.Of(dir)
	if err != nil || other.Name == want.Name || len(other.Name) != 10 {
		t.Errorf("other directory: %+v, %v", other, err)
	}
}

func TestRootIsRefused(t *testing.T) {
	if _, err := layout.Of("/"); !fault.Is(err, fault.Invalid) {
		t.Errorf("error %v", err)
	}
}
