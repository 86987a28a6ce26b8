package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/store"
)

func open(t testing.TB, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// content returns a function that writes a layer.
func content(s string) func(*os.File) error {
	return func(f *os.File) error {
		_, err := f.WriteString(s)
		return err
	}
}

// add imports an image of layers with these contents.
func add(s *store.Store, name string, layers ...string) (r store.Record, err error) {
	i, err := s.Begin()
	if err != nil {
		return r, err
	}
	defer func() {
		if e := i.End(); err == nil {
			err = e
		}
	}()
	r.Name = name
	for _, c := range layers {
		l, err := i.AddLayer(context.Background(), content(c))
		if err != nil {
			return r, err
		}
		r.Layers = append(r.Layers, l)
	}
	return i.Commit(context.Background(), r)
}

// files lists what lies in the store, locks apart.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	for _, d := range []string{"layers", "images", "tmp"} {
		m, err := filepath.Glob(filepath.Join(dir, d, "*"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

func TestImagesShareLayers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	a, err := add(s, "a:1", "base", "top")
	if err != nil {
		t.Fatal(err)
	}
	b, err := add(s, "b", "base")
	if err != nil {
		t.Fatal(err)
	}
	if a.Layers[0] != b.Layers[0] || a.Size() != 7 || len(files(t, dir)) != 4 {
		t.Errorf("%+v %+v %v", a, b, files(t, dir))
	}
	for _, ref := range []string{"a:1", a.ID} {
		if r, err := s.Get(ref); err != nil || r.ID != a.ID || !r.Created.Equal(a.Created) {
			t.Errorf("Get(%s) = %+v, %v", ref, r, err)
		}
	}
	if rs, err := open(t, dir).List(); err != nil || len(rs) != 2 || rs[0].Name != "a:1" || rs[1].Name != "b" {
		t.Errorf("%+v, %v", rs, err)
	}
	path, err := s.LayerPath(a.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Remove(a.ID); err != nil || r.Name != "a:1" {
		t.Errorf("%+v, %v", r, err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "base" {
		t.Errorf("the shared layer: %q, %v", got, err)
	}
	if _, err := s.Remove("b"); err != nil {
		t.Error(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := add(s, "a", "base"); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	for _, c := range []struct {
		name string
		kind fault.Kind
	}{
		{"a", fault.Exists}, {"", fault.Invalid}, {"-x", fault.Invalid}, {"a b", fault.Invalid}, {"a\x1b", fault.Invalid},
		{"im-abc", fault.Invalid}, {strings.Repeat("n", 256), fault.Invalid}, {"\xff", fault.Invalid},
	} {
		if _, err := add(s, c.name, "base", "new"); fault.KindOf(err) != c.kind {
			t.Errorf("%q: %v", c.name, err)
		}
	}
	for _, ref := range []string{"b", "im-abc", "", "../../etc/passwd"} {
		if _, err := s.Get(ref); !fault.Is(err, fault.NotFound) {
			t.Errorf("Get(%q): %v", ref, err)
		}
		if _, err := s.Remove(ref); !fault.Is(err, fault.NotFound) {
			t.Errorf("Remove(%q): %v", ref, err)
		}
	}
	for _, d := range []string{"", "sha256:../x", "md5:00"} {
		if _, err := s.LayerPath(d); !fault.Is(err, fault.Invalid) {
			t.Errorf("LayerPath(%q): %v", d, err)
		}
	}
	i, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.AddLayer(ctx, content("c")); !fault.Is(err, fault.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := i.AddLayer(t.Context(), func(*os.File) error { return unix.ENOSPC }); !fault.Is(err, fault.Exhausted) {
		t.Errorf("full disk: %v", err)
	}
	if _, err := i.AddLayer(t.Context(), content("orphan")); err != nil {
		t.Error(err)
	}
	if err := i.End(); err != nil {
		t.Error(err)
	}
	if after := files(t, dir); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

// TestCrash finds what a killed process leaves: unfinished files and layers
// without a record go when the store is opened, the rest stays.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	if _, err := add(open(t, dir), "a", "base"); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	for _, name := range []string{"tmp/layer-1", "tmp/record-2", "layers/" + strings.Repeat("0", 64) + ".erofs"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("torn"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	if after := files(t, dir); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
	// A damaged record costs neither layers nor the store.
	if err := os.WriteFile(filepath.Join(dir, "images/im-a.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(); !fault.Is(err, fault.Internal) {
		t.Errorf("%v", err)
	}
	open(t, dir)
	if len(files(t, dir)) != len(before)+1 {
		t.Errorf("%v", files(t, dir))
	}
}

// TestAtOnce imports and removes images that share layers from several
// goroutines: no image ever misses a layer, and no layer stays behind.
func TestAtOnce(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			s, err := store.Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			for n := range 10 {
				name := fmt.Sprintf("%d-%d", g, n)
				r, err := add(s, name, "base", fmt.Sprint(n%3))
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				for _, l := range r.Layers {
					if path, err := s.LayerPath(l.Digest); err != nil {
						t.Error(err)
					} else if _, err := os.Stat(path); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				if _, err := s.Remove(name); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
	if _, err := open(t, dir).GC(); err != nil {
		t.Error(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestSameNameAtOnce: one of many wins.
func TestSameNameAtOnce(t *testing.T) {
	s := open(t, t.TempDir())
	errs := make(chan error)
	for range 8 {
		go func() {
			_, err := add(s, "same", "base")
			errs <- err
		}()
	}
	won := 0
	for range 8 {
		if err := <-errs; err == nil {
			won++
		} else if !fault.Is(err, fault.Exists) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d imports took one name", won)
	}
}
