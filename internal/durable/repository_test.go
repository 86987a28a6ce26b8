package durable_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/durable/uppertest"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// check compares a record with what it was made from.
func check(t testing.TB, r *durable.Repository, id string, want state) {
	t.Helper()
	s, err := r.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	checkTree(t, s, want.tree)
	for pid, m := range want.memory {
		got := memory{}
		err := s.Pages(t.Context(), pid, func(r durable.Run) error {
			for i := uint64(0); i < r.Len; i += page {
				p := make([]byte, page)
				if r.Data != nil {
					copy(p, r.Data[i:])
				}
				got[(r.Addr+i)/page] = p
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%s: process %d has %d pages, not %d, or others", id, pid, len(got), len(m))
		}
	}
	var extra section
	if err := s.Section(t.Context(), "engine", &extra); err != nil {
		t.Fatal(err)
	}
	defer extra.Note.Close()
	if !reflect.DeepEqual(extra.Words, want.extra.Words) {
		t.Errorf("%s: section %q", id, extra.Words)
	}
	sameFile(t, extra.Note, want.extra.Note)
	if err := s.Section(t.Context(), "none", &extra); !fault.Is(err, fault.NotFound) {
		t.Errorf("a section that is not there: %v", err)
	}
	if want.dir == "" {
		return
	}
	to := filepath.Join(t.TempDir(), "restored")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := s.RestoreUpper(t.Context(), int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
	uppertest.Same(t, want.dir, to)
}

func checkTree(t testing.TB, s *durable.Stored, want *image.Tree) {
	t.Helper()
	got, err := s.Tree(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sameFile(t, got.Files[0].Blob.File, want.Files[0].Blob.File)
	dup := func(fd int) *os.File {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(n), "")
	}
	a, b := dup(got.Shared[0].FD), dup(want.Shared[0].FD)
	sameFile(t, a, b)
	if got.Shared[1].FD != -1 {
		t.Error("a file out of nothing")
	}
	a.Close()
	b.Close()
	got.Files[0].Blob.File.Close()
	got.Shared[0].Close()
	// All else is equal.
	w := *want
	file := *want.Files[0]
	file.Blob = got.Files[0].Blob
	got.Shared[0].FD = want.Shared[0].FD
	w.Files = []*image.File{&file}
	if got.Files[0].Blob.Size != want.Files[0].Blob.Size || !reflect.DeepEqual(got, &w) {
		t.Error("the tree is another")
	}
}

func TestWriteAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	r := open(t, dir)
	w := newWorld(t, 1)
	var states []state
	var infos []durable.Info
	for range 6 {
		c := w.step()
		info, err := r.Write(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
		st := w.still()
		states = append(states, st)
		check(t, r, c.ID, w.now)
	}
	t.Logf("first: read %d, new %d; last: read %d, new %d", infos[0].ReadBytes, infos[0].NewBytes, infos[5].ReadBytes, infos[5].NewBytes)
	for _, r := range []*durable.Repository{r, open(t, dir)} { // as well for whoever opens it anew
		for i, st := range states {
			check(t, r, infos[i].ID, st)
		}
		list, err := r.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(list, infos) {
			t.Errorf("listed %+v, written %+v", list, infos)
		}
	}
	// Any may go; the others stay.
	for _, id := range []string{"cp-1", "cp-4"} {
		if err := r.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	check(t, r, "cp-2", states[1])
	check(t, r, "cp-6", states[5])
	if _, err := r.Get(t.Context(), "cp-4"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a record that was removed: %v", err)
	}
}

func TestRefused(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "r"))
	ok := durable.Checkpoint{ID: "a", Upper: -1, Memory: []durable.Pages{{
		PID: 2, Full: true, Changed: []durable.Span{{Start: 0, End: page}}, Source: bytes.NewReader(make([]byte, page)),
	}}}
	if _, err := r.Write(t.Context(), ok); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what   string
		kind   fault.Kind
		change func(*durable.Checkpoint)
	}{
		{"a path", fault.Invalid, func(c *durable.Checkpoint) { c.ID = "../a" }},
		{"an id that is taken", fault.Exists, func(c *durable.Checkpoint) { c.ID = "a" }},
		{"no parent", fault.NotFound, func(c *durable.Checkpoint) { c.Parent = "nobody" }},
		{"half a page", fault.Invalid, func(c *durable.Checkpoint) { c.Memory[0].Changed = []durable.Span{{Start: 0, End: 5}} }},
		{"a difference from nothing", fault.Invalid, func(c *durable.Checkpoint) { c.Memory[0].Full = false }},
		{"twice", fault.Invalid, func(c *durable.Checkpoint) { c.Memory = append(c.Memory, c.Memory[0]) }},
		{"pages that are not there", fault.Internal, func(c *durable.Checkpoint) { c.Memory[0].Changed[0].End = 2 * page }},
		{"a function", fault.Internal, func(c *durable.Checkpoint) { c.Sections = map[string]any{"x": func() {}} }},
	} {
		bad := ok
		bad.ID = "b"
		bad.Memory = []durable.Pages{ok.Memory[0]}
		bad.Memory[0].Changed = []durable.Span{{Start: 0, End: page}}
		c.change(&bad)
		if _, err := r.Write(t.Context(), bad); !fault.Is(err, c.kind) {
			t.Errorf("%s: %v (%s)", c.what, err, fault.KindOf(err))
		}
	}
	if list, err := r.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%d records, %v", len(list), err)
	}
	if err := r.Remove("b"); !fault.Is(err, fault.NotFound) {
		t.Error(err)
	}
	// What is no repository is not made one.
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.Open(other, durable.Options{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a directory of something else: %v", err)
	}
	if _, err := durable.Open(filepath.Join(other, "no", "r"), durable.Options{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("nowhere: %v", err)
	}
}
