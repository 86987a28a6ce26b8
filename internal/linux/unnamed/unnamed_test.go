package unnamed_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/linux/unnamed"
)

// begin makes a file with some content in a new directory.
func begin(t *testing.T) (f *unnamed.File, dir string) {
	t.Helper()
	dir = t.TempDir()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if f, err = unnamed.Create(d); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, "whole"); err != nil {
		t.Fatal(err)
	}
	return f, dir
}

// only wants one file, or none, in a directory.
func only(t *testing.T, dir, name, content string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if name == "" {
		if len(all) > 0 {
			t.Errorf("left: %v", all)
		}
		return
	}
	got, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(got) != content || len(all) != 1 {
		t.Errorf("%v with %q, %v", all, got, err)
	}
}

func TestPlace(t *testing.T) {
	f, dir := begin(t)
	only(t, dir, "", "")
	if err := f.Place("new"); err != nil {
		t.Fatal(err)
	}
	only(t, dir, "new", "whole")
}

func TestPlaceReplaces(t *testing.T) {
	for _, made := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, []byte("other"), 0o600) },
		func(path string) error { return os.Symlink("/nowhere", path) },
	} {
		f, dir := begin(t)
		if err := made(filepath.Join(dir, "old")); err != nil {
			t.Fatal(err)
		}
		if err := f.Place("old"); err != nil {
			t.Fatal(err)
		}
		only(t, dir, "old", "whole")
	}
}

func TestWhatIsNotPlacedIsGone(t *testing.T) {
	f, dir := begin(t)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	only(t, dir, "", "")
	for _, name := range []string{"", ".", "..", "a/b", "/a", "is"} {
		f, dir := begin(t)
		if err := os.Mkdir(filepath.Join(dir, "is"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := f.Place(name); err == nil {
			t.Errorf("placed as %q", name)
		}
		if err := os.Remove(filepath.Join(dir, "is")); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		only(t, dir, "", "")
	}
}
