package durable_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/fault"
)

// usage is the length of all files of a repository.
func usage(t testing.TB, dir string) (n int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, st os.FileInfo, err error) error {
		if err == nil && st.Mode().IsRegular() {
			n += st.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sound verifies a repository.
func sound(t testing.TB, r *durable.Repository) {
	t.Helper()
	problems, err := r.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("record %s: %s", p.Record, p.What)
	}
}

func collect(t testing.TB, r *durable.Repository) durable.Collected {
	t.Helper()
	c, err := r.Collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDiskStaysBounded keeps the last three checkpoints of many.
func TestDiskStaysBounded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	r := open(t, dir)
	w := newWorld(t, 2)
	var kept []string
	states := map[string]state{}
	var settled, most int64
	for round := range 12 {
		c := w.step()
		if _, err := r.Write(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		states[c.ID] = w.still()
		if kept = append(kept, c.ID); len(kept) > 3 {
			if err := r.Remove(kept[0]); err != nil {
				t.Fatal(err)
			}
			kept = kept[1:]
		}
		collect(t, r)
		switch n := usage(t, dir); {
		case round == 5:
			settled = n
		case round > 5:
			most = max(most, n)
		}
	}
	t.Logf("%d bytes after 6 rounds, at most %d in the 6 after them", settled, most)
	if most > 2*settled {
		t.Errorf("%d bytes after 6 rounds became %d", settled, most)
	}
	for _, id := range kept {
		check(t, r, id, states[id])
	}
	sound(t, r)
	sound(t, open(t, dir))
	for _, id := range kept {
		if err := r.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	collect(t, r)
	if n := usage(t, dir); n > 1000 {
		t.Errorf("an empty repository has %d bytes", n)
	}
}

// TestOpenRecordOutlivesCollection: what is removed stays as long as somebody
// reads it.
func TestOpenRecordOutlivesCollection(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	r, other := open(t, dir), open(t, dir) // as another process
	w := newWorld(t, 3)
	c := w.step()
	if _, err := r.Write(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	s, err := r.Get(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Remove(c.ID); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := collect(t, other); got.Bytes != 0 || got.Held == 0 {
			t.Errorf("%+v", got)
		}
	}
	pages := 0
	for _, pid := range s.PIDs() {
		if err := s.Pages(t.Context(), pid, func(r durable.Run) error { pages += int(r.Len / page); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if pages == 0 {
		t.Error("no pages")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, other); got.Bytes == 0 || got.Held != 0 {
		t.Errorf("%+v", got)
	}
}

// TestCollectBesideWrites collects all the time, while others write and remove.
func TestCollectBesideWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	ctx, cancel := context.WithCancel(t.Context())
	var collector, writers sync.WaitGroup
	mine := open(t, dir)
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := mine.Collect(ctx); err != nil && !fault.Is(err, fault.Canceled) {
				t.Error(err)
				return
			}
		}
	})
	final := open(t, dir)
	for n := range 2 {
		w := newWorld(t, 7) // the same for both, so that they share
		r := open(t, dir)
		writers.Go(func() {
			states := map[string]state{}
			for range 5 {
				c := w.step()
				old := c.Parent
				c.ID = fmt.Sprintf("w%d-%s", n, c.ID)
				if old != "" {
					c.Parent = fmt.Sprintf("w%d-%s", n, old)
				}
				if _, err := r.Write(t.Context(), c); err != nil {
					t.Error(err)
					return
				}
				states[c.ID] = w.still()
				if old != "" {
					if err := r.Remove(c.Parent); err != nil {
						t.Error(err)
					}
					delete(states, c.Parent)
				}
			}
			for id, st := range states {
				check(t, r, id, st)
			}
		})
	}
	writers.Wait()
	cancel()
	collector.Wait()
	sound(t, final)
}

func TestVerifyFindsWhatIsBroken(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(t *testing.T, dir string)
	}{
		{"a flipped bit in a chunk", func(t *testing.T, dir string) { flip(t, only(t, dir, "packs"), 1000) }},
		{"a flipped bit in an index", func(t *testing.T, dir string) { flip(t, only(t, dir, "packs"), -100) }},
		{"a pack cut short", func(t *testing.T, dir string) { cut(t, only(t, dir, "packs")) }},
		{"a pack that is gone", func(t *testing.T, dir string) {
			if err := os.Remove(only(t, dir, "packs")); err != nil {
				t.Fatal(err)
			}
		}},
		{"a flipped bit in a record", func(t *testing.T, dir string) { flip(t, only(t, dir, "records"), 100) }},
		{"a record cut short", func(t *testing.T, dir string) { cut(t, only(t, dir, "records")) }},
		{"an empty record", func(t *testing.T, dir string) {
			if err := os.Truncate(only(t, dir, "records"), 0); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		dir := filepath.Join(t.TempDir(), "r")
		r := open(t, dir)
		w := newWorld(t, 4)
		if _, err := r.Write(t.Context(), w.step()); err != nil {
			t.Fatal(err)
		}
		sound(t, r)
		c.spoil(t, dir)
		after := open(t, dir)
		problems, err := after.Verify(t.Context())
		if err != nil || len(problems) == 0 {
			t.Errorf("%s: %d problems, %v", c.what, len(problems), err)
		}
		if len(problems) > 0 {
			t.Logf("%s: %d problems, the first: %s", c.what, len(problems), problems[0].What)
		}
		if _, err := after.Collect(t.Context()); err == nil {
			t.Logf("%s: collected all the same", c.what)
		}
	}
}

func only(t testing.TB, dir, sub string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, sub))
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	return filepath.Join(dir, sub, entries[0].Name())
}

// flip flips a bit at an offset, counted from the end if it is negative.
func flip(t testing.TB, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if at < 0 {
		at += st.Size()
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func cut(t testing.TB, path string) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()*2/3); err != nil {
		t.Fatal(err)
	}
}
