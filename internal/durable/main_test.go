package durable_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/process/image"
)

const page = 4096

// open opens a repository that is closed when the test ends.
func open(t testing.TB, dir string) *durable.Repository {
	t.Helper()
	r, err := durable.Open(dir, durable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// memory is the pages that a process has, by number.
type memory map[uint64][]byte

func (m memory) ReadAt(b []byte, at int64) (int, error) {
	for i := 0; i < len(b); i += page {
		p := m[uint64(at+int64(i))/page]
		if p == nil {
			return i, io.ErrUnexpectedEOF
		}
		copy(b[i:], p)
	}
	return len(b), nil
}

// state is what a checkpoint is made of, for tests.
type state struct {
	memory map[int]memory
	tree   *image.Tree
	dir    string
	extra  section
}

type section struct {
	Words []string
	Note  *os.File
}

// failer is the part of testing.TB that a world needs: a program has one, too.
type failer interface {
	Helper()
	Fatal(...any)
	Cleanup(func())
}

// world is a state that changes, and the checkpoints that it went through.
type world struct {
	t    failer
	rand *rand.Rand
	now  state
	last string
	made int
	// shared is how much shared memory the processes have, in bytes.
	shared int
}

func newWorld(t testing.TB, seed uint64) *world { return makeWorld(t, seed, t.TempDir()) }

func makeWorld(t failer, seed uint64, dir string) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), shared: 20_000}
	w.now = state{memory: map[int]memory{}, dir: filepath.Join(dir, "upper")}
	if err := os.Mkdir(w.now.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return w
}

// still is the state without its files, as it stays when the world goes on.
func (w *world) still() state {
	s := w.now
	s.memory = maps.Clone(s.memory)
	s.dir = ""
	return s
}

// content is bytes that compress about as well as a program's.
func (w *world) content(n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 24 {
		binary.LittleEndian.PutUint64(b[i:], w.rand.Uint64())
	}
	return b
}

// memfd is an anonymous file with a hole in it.
func (w *world) memfd(n int) *os.File {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		w.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	if _, err := f.WriteAt(w.content(n), 1<<20); err != nil {
		w.t.Fatal(err)
	}
	return f
}

// step changes the state and returns it as a checkpoint against the last one.
func (w *world) step() durable.Checkpoint {
	w.made++
	c := durable.Checkpoint{
		ID: fmt.Sprintf("cp-%d", w.made), Parent: w.last, Sandbox: "sb-1", Name: fmt.Sprintf("n%d", w.made),
		Created: time.Unix(int64(w.made), 5).UTC(), Layers: []string{"sha256:aa", "sha256:bb"},
	}
	for pid := 2; pid < 5; pid++ {
		c.Memory = append(c.Memory, w.writePages(pid))
	}
	w.now.tree = w.processes()
	c.Tree = w.now.tree
	w.files()
	dir, err := unix.Open(w.now.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { unix.Close(dir) })
	c.Upper = dir
	w.now.extra = section{Words: []string{c.ID, "\xff"}, Note: w.memfd(100)}
	c.Sections = map[string]any{"engine": w.now.extra}
	w.last = c.ID
	return c
}

func (w *world) writePages(pid int) durable.Pages {
	p := durable.Pages{PID: pid, Full: w.now.memory[pid] == nil, Mapped: []durable.Span{{Start: 0, End: 1 << 40}}}
	now := memory{}
	for n, b := range w.now.memory[pid] {
		now[n] = b
	}
	writes := 10
	if p.Full {
		writes = 40
	}
	for range writes {
		n := w.rand.Uint64N(2000)
		now[n] = w.content(page)
		if w.rand.IntN(5) == 0 {
			now[n] = make([]byte, page)
		}
		p.Changed = append(p.Changed, durable.Span{Start: n * page, End: (n + 1) * page})
	}
	n := w.rand.Uint64N(2000)
	if _, again := now[n]; !again {
		p.Gone = append(p.Gone, durable.Span{Start: n * page, End: (n + 1) * page})
	}
	p.Source = now
	w.now.memory[pid] = now
	return p
}

func (w *world) processes() *image.Tree {
	t := &image.Tree{Monotonic: w.rand.Int64(), LastPID: 9}
	for pid := 2; pid < 5; pid++ {
		t.Processes = append(t.Processes, &image.Process{
			PID: pid, Parent: 1, State: image.Running, Comm: "a\xfe", Terminal: -1,
			Threads: []*image.Thread{{TID: pid, XState: w.content(832), Regs: unix.PtraceRegs{Rip: w.rand.Uint64()}}},
			Memory:  image.Memory{VMAs: []image.VMA{{Start: 0, End: 1 << 40, Prot: 3}}},
		})
	}
	t.Files = []*image.File{{Kind: image.Regular, Path: "/gone", Deleted: true, Blob: &image.Blob{File: w.memfd(5000), Size: 1<<20 + 5000}}}
	f := w.memfd(w.shared)
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	f.Close()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { unix.Close(fd) })
	t.Shared = []*image.Shared{{Ino: 5, FD: fd}, {Ino: 6, FD: -1, Object: 3}}
	return t
}

// files changes some files of the upper.
func (w *world) files() {
	for range 10 {
		dir := filepath.Join(w.now.dir, fmt.Sprintf("d%d", w.rand.IntN(4)))
		if err := os.MkdirAll(dir, 0o711); err != nil {
			w.t.Fatal(err)
		}
		path := filepath.Join(dir, fmt.Sprintf("f%d", w.rand.IntN(10)))
		if w.rand.IntN(4) == 0 {
			_ = os.Remove(path)
			continue
		}
		if err := os.WriteFile(path, w.content(w.rand.IntN(w.rand.IntN(60_000)+1)), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
}

// sameFile compares two files' bytes.
func sameFile(t testing.TB, a, b *os.File) {
	t.Helper()
	read := func(f *os.File) []byte {
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		out := make([]byte, st.Size())
		if _, err := f.ReadAt(out, 0); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if !bytes.Equal(read(a), read(b)) {
		t.Error("a file has other bytes")
	}
}
