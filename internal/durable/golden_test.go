package durable_test

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/durable/uppertest"
	"github.com/sandtree/sandtree/internal/process/image"
)

var writeGolden = flag.Bool("write-golden", false, "write testdata/v1 anew, which must not be done once the format has users")

const golden = "testdata/v1"

// goldenStates are two checkpoints with everything in them that the format has.
// What this function makes must never change.
func goldenStates(t *testing.T) (first, second state, changed []durable.Pages) {
	t.Helper()
	w := &world{t: t, rand: rand.New(rand.NewPCG(1, 2)), shared: 200_000}
	first = state{memory: map[int]memory{2: {}, 70: {}}, tree: w.processes(), extra: section{Words: []string{"first"}, Note: w.memfd(5000)}}
	for n := uint64(0x7f0000000); n < 0x7f0000040; n++ {
		first.memory[2][n] = w.content(page)
	}
	first.memory[2][5] = make([]byte, page)
	first.memory[70][0x10000] = w.content(page)
	second = state{memory: map[int]memory{2: {}, 70: first.memory[70]}, tree: w.processes(), extra: section{Words: []string{"second", "\xff"}, Note: w.memfd(1)}}
	for n, b := range first.memory[2] {
		second.memory[2][n] = b
	}
	p := durable.Pages{PID: 2, Mapped: []durable.Span{{Start: 0, End: 1 << 47}}, Source: second.memory[2]}
	delete(second.memory[2], 0x7f0000009)
	p.Gone = []durable.Span{{Start: 0x7f0000009 * page, End: 0x7f000000a * page}}
	second.memory[2][0x7f0000011] = w.content(page)
	p.Changed = []durable.Span{{Start: 0x7f0000011 * page, End: 0x7f0000012 * page}}
	changed = []durable.Pages{p, {PID: 70, Mapped: p.Mapped}}
	first.dir, second.dir = filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	goldenFiles(t, first.dir, []byte("first"))
	goldenFiles(t, second.dir, []byte("second"))
	return first, second, changed
}

func goldenFiles(t *testing.T, dir string, text []byte) {
	t.Helper()
	in := func(s string) string { return filepath.Join(dir, s) }
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Mkdir(in("d"), 0o700))
	must(t, os.WriteFile(in("d/small"), text, 0o600))
	must(t, os.WriteFile(in("large"), bytes.Repeat([]byte("0123456789abcdef"), 20_000), 0o644))
	f, err := os.Create(in("sparse"))
	must(t, err)
	for i := range int64(150) {
		_, err = f.WriteAt([]byte{byte(i)}, i<<20)
		must(t, err)
	}
	must(t, f.Close())
	must(t, os.Link(in("large"), in("d/large")))
	must(t, os.Symlink("../large", in("d/link")))
	must(t, unix.Mknod(in("gone"), unix.S_IFCHR, 0))
	must(t, unix.Mkfifo(in("fifo"), 0o600))
	must(t, os.Lchown(in("d/small"), 1000, 100))
	must(t, unix.Setxattr(in("d"), "trusted.overlay.opaque", []byte("y"), 0))
	for _, n := range []string{"d/small", "d/link", "large", "sparse", "gone", "fifo", "d", "."} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(n), []unix.Timespec{{Sec: 5, Nsec: 6}, {Sec: 1_700_000_000, Nsec: 7}}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func full(pid int, m memory) durable.Pages {
	return durable.Pages{PID: pid, Full: true, Changed: spans(m), Source: m}
}

func writeGoldenFiles(t *testing.T, first, second state, changed []durable.Pages) {
	t.Helper()
	must(t, os.RemoveAll(golden))
	must(t, os.MkdirAll("testdata", 0o755))
	r, err := durable.Open(golden, durable.Options{})
	must(t, err)
	defer r.Close()
	for i, c := range []durable.Checkpoint{
		{ID: "cp-1", Sandbox: "sb-1", Name: "before", Created: time.Unix(1_700_000_000, 1), Layers: []string{"sha256:ab"}, Memory: []durable.Pages{full(2, first.memory[2]), full(70, first.memory[70])}},
		{ID: "cp-2", Parent: "cp-1", Sandbox: "sb-1", Created: time.Unix(1_700_000_001, 2), Memory: changed},
	} {
		st := []state{first, second}[i]
		c.Tree, c.Sections = st.tree, map[string]any{"engine": st.extra}
		dir, err := os.Open(st.dir)
		must(t, err)
		c.Upper = int(dir.Fd())
		_, err = r.Write(t.Context(), c)
		must(t, err)
		must(t, dir.Close())
	}
	f, err := os.Create(golden + ".export")
	must(t, err)
	must(t, r.Export(t.Context(), f, durable.ExportOptions{}))
	must(t, f.Close())
	for _, sub := range []string{"condemned", "leases", "tmp"} { // git keeps no empty directories
		must(t, os.Remove(filepath.Join(golden, sub)))
	}
}

// TestGolden reads a repository and an export of each version that there was.
func TestGolden(t *testing.T) {
	first, second, changed := goldenStates(t)
	if *writeGolden {
		writeGoldenFiles(t, first, second, changed)
	}
	dir := filepath.Join(t.TempDir(), "r")
	must(t, os.CopyFS(dir, os.DirFS(golden)))
	r := open(t, dir)
	sound(t, r)
	for id, want := range map[string]state{"cp-1": first, "cp-2": second} {
		got := stored(t, r, id, filepath.Join(t.TempDir(), "files"))
		equalStates(t, id, got, &want)
		got.close()
	}
	list, err := r.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Name != "before" || list[1].Parent != "cp-1" || !list[1].Created.Equal(time.Unix(1_700_000_001, 2)) ||
		len(list[0].Layers) != 1 || list[0].Machine.Arch != "amd64" || list[0].Machine.StateSize != 832 || list[0].Processes != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	export, err := os.Open(golden + ".export")
	must(t, err)
	defer export.Close()
	infos, problems, err := durable.VerifyExport(t.Context(), export)
	if err != nil || len(problems) > 0 || len(infos) != 2 {
		t.Errorf("%v, %v, %v", infos, problems, err)
	}
}

func equalStates(t *testing.T, id string, got, want *state) {
	t.Helper()
	for pid, m := range want.memory {
		if len(got.memory[pid]) != len(m) {
			t.Errorf("%s: process %d has %d pages, not %d", id, pid, len(got.memory[pid]), len(m))
		}
		for n, b := range m {
			if !bytes.Equal(got.memory[pid][n], b) {
				t.Errorf("%s: page %#x of process %d is another", id, n, pid)
			}
		}
	}
	if a, b := got.tree.Processes[1], want.tree.Processes[1]; !bytes.Equal(a.Threads[0].XState, b.Threads[0].XState) || a.Threads[0].Regs != b.Threads[0].Regs || a.Comm != b.Comm {
		t.Errorf("%s: other processes", id)
	}
	if f := got.tree.Files[0]; f.Kind != image.Regular || f.Path != "/gone" || f.Blob.Size != want.tree.Files[0].Blob.Size {
		t.Errorf("%s: other files", id)
	}
	sameFile(t, got.tree.Files[0].Blob.File, want.tree.Files[0].Blob.File)
	sameFile(t, got.extra.Note, want.extra.Note)
	uppertest.Same(t, want.dir, got.dir)
}
