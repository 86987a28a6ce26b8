package durable_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
)

// exported makes a repository of three records and an export of all.
func exported(t testing.TB) (w *world, states map[string]state, infos []durable.Info, stream []byte) {
	t.Helper()
	r := open(t, filepath.Join(t.TempDir(), "r"))
	w = newWorld(t, 11)
	states = map[string]state{}
	for range 3 {
		c := w.step()
		info, err := r.Write(t.Context(), c)
		must(t, err)
		infos = append(infos, info)
		states[c.ID] = w.still()
	}
	var b bytes.Buffer
	must(t, r.Export(t.Context(), &b, durable.ExportOptions{}))
	return w, states, infos, b.Bytes()
}

func TestExportAndImport(t *testing.T) {
	w, states, infos, stream := exported(t)
	dir := filepath.Join(t.TempDir(), "other")
	r := open(t, dir)
	got, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{})
	must(t, err)
	if !reflect.DeepEqual(got, infos) {
		t.Errorf("%+v, not %+v", got, infos)
	}
	for id, st := range states {
		if id == infos[2].ID {
			st.dir = w.now.dir
		}
		check(t, r, id, st)
	}
	sound(t, r)
	collect(t, r)
	sound(t, open(t, dir))
	// Once more it is refused, and under other ids it is not.
	if _, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{}); !fault.Is(err, fault.Exists) {
		t.Errorf("%v", err)
	}
	before := usage(t, dir)
	got, err = r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{Rename: func(id string) string { return "other-" + id }})
	must(t, err)
	if got[2].ID != "other-"+infos[2].ID || got[2].Parent != "other-"+infos[1].ID {
		t.Errorf("%+v", got[2])
	}
	if more := usage(t, dir) - before; more > 50_000 {
		t.Errorf("the same once more takes %d bytes", more)
	}
	check(t, r, got[1].ID, states[infos[1].ID])
	// One alone, without its parent.
	var one bytes.Buffer
	must(t, r.Export(t.Context(), &one, durable.ExportOptions{}, infos[1].ID))
	if one.Len() >= len(stream) {
		t.Errorf("one of three has %d bytes of %d", one.Len(), len(stream))
	}
	alone := open(t, filepath.Join(t.TempDir(), "alone"))
	_, err = alone.Import(t.Context(), &one, durable.ImportOptions{})
	must(t, err)
	check(t, alone, infos[1].ID, states[infos[1].ID])
	// The last without the one between, below the first.
	var ends bytes.Buffer
	must(t, r.Export(t.Context(), &ends, durable.ExportOptions{Parents: map[string]string{infos[2].ID: infos[0].ID}}, infos[0].ID, infos[2].ID))
	got, err = open(t, filepath.Join(t.TempDir(), "ends")).Import(t.Context(), &ends, durable.ImportOptions{})
	must(t, err)
	if len(got) != 2 || got[0].Parent != "" || got[1].ID != infos[2].ID || got[1].Parent != infos[0].ID {
		t.Errorf("without the one between: %+v", got)
	}
	// And a writer goes on from what was imported.
	c := w.step()
	_, err = r.Write(t.Context(), c)
	must(t, err)
	check(t, r, c.ID, w.now)
	if err := r.Export(t.Context(), &one, durable.ExportOptions{}, "nobody"); !fault.Is(err, fault.NotFound) {
		t.Errorf("%v", err)
	}
}

func TestVerifyExport(t *testing.T) {
	_, _, infos, stream := exported(t)
	got, problems, err := durable.VerifyExport(t.Context(), bytes.NewReader(stream))
	must(t, err)
	if len(problems) > 0 || !reflect.DeepEqual(got, infos) {
		t.Errorf("%v, %+v", problems, got)
	}
	if _, _, err := durable.VerifyExport(t.Context(), bytes.NewReader(stream[:len(stream)-1])); !fault.Is(err, fault.Invalid) {
		t.Errorf("%v", err)
	}
}

// TestSpoiltExports: whatever is cut or flipped, nothing is kept of it.
func TestSpoiltExports(t *testing.T) {
	_, _, _, stream := exported(t)
	dir := filepath.Join(t.TempDir(), "r")
	r := open(t, dir)
	try := func(what string, b []byte) {
		t.Helper()
		_, err := r.Import(t.Context(), bytes.NewReader(b), durable.ImportOptions{})
		if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.Unsupported) {
			t.Errorf("%s: %v (%s)", what, err, fault.KindOf(err))
		}
		if list, err := r.List(t.Context()); err != nil || len(list) > 0 {
			t.Fatalf("%s: %d records, %v", what, len(list), err)
		}
		for _, sub := range []string{"tmp", "packs", "leases"} {
			if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) > 0 {
				t.Fatalf("%s: %s has %v, %v", what, sub, entries, err)
			}
		}
	}
	for i := range 20 {
		at := i * (len(stream) - 1) / 19
		b := bytes.Clone(stream)
		b[at] ^= 1 << (i % 8)
		try("a flipped bit", b)
		try("cut short", stream[:at])
	}
	try("something behind", append(bytes.Clone(stream), 0))
	try("twice", append(bytes.Clone(stream), stream...))
	if _, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{MaxBytes: 100_000}); !fault.Is(err, fault.Invalid) {
		t.Errorf("too large: %v", err)
	}
	if _, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{Rename: func(string) string { return "../x" }}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a path: %v", err)
	}
	if _, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{Rename: func(string) string { return "x" }}); !fault.Is(err, fault.Invalid) {
		t.Errorf("one id for all: %v", err)
	}
	for _, point := range []string{"durable.import.received", "durable.import.verified", "durable.record.published", "durable.packs.named"} {
		t.Run(point, func(t *testing.T) {
			r := open(t, filepath.Join(t.TempDir(), "r"))
			failpoint.Enable(t, point, "error")
			var injected *failpoint.Error
			if _, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{}); !errors.As(err, &injected) {
				t.Errorf("%v", err)
			}
			if list, err := r.List(t.Context()); err != nil || len(list) > 0 {
				t.Errorf("%d records, %v", len(list), err)
			}
		})
	}
	_, err := r.Import(t.Context(), bytes.NewReader(stream), durable.ImportOptions{})
	must(t, err)
	sound(t, r)
}
