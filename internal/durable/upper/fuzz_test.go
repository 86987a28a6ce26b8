package upper_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/upper"
)

// FuzzSegment restores what it is given: nothing comes to be outside of the
// directory, whatever is in it.
func FuzzSegment(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "u")
	must(f, os.Mkdir(dir, 0o755))
	must(f, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	must(f, os.WriteFile(filepath.Join(dir, "d/f"), []byte("content"), 0o644))
	must(f, os.Link(filepath.Join(dir, "d/f"), filepath.Join(dir, "g")))
	must(f, os.Symlink("d", filepath.Join(dir, "l")))
	seed := newKept()
	m, _, err := upper.Capture(f.Context(), seed, seed, nil, openDir(f, dir))
	must(f, err)
	f.Add(seed.chunks[m.Segments[0]])
	// A link out, and a file below it.
	f.Add(bytes.ReplaceAll(seed.chunks[m.Segments[0]], []byte("anf"), []byte("an.")))
	f.Fuzz(func(t *testing.T, segment []byte) {
		k := newKept()
		id, err := k.Put(segment)
		if err != nil || len(segment) > chunk.Max {
			return
		}
		m := upper.Manifest{Segments: []chunk.ID{id}, Entries: 1}
		_, _, measured := m.Measure(k)
		in := t.TempDir()
		to := filepath.Join(in, "to")
		must(t, os.Mkdir(to, 0o755))
		restored := m.Restore(t.Context(), k, openDir(t, to))
		if measured != nil && restored == nil {
			t.Errorf("restored what is no tree: %v", measured)
		}
		names, err := os.ReadDir(in)
		if err != nil || len(names) != 1 {
			t.Errorf("%v, %v", names, err)
		}
	})
}
