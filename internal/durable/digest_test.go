package durable_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/uppertest"
)

// digest sums up a state, so that one process can tell another what it kept.
func (s *state) digest(t failer) string {
	t.Helper()
	h := sha256.New()
	for _, pid := range slices.Sorted(maps.Keys(s.memory)) {
		for _, n := range slices.Sorted(maps.Keys(s.memory[pid])) {
			fmt.Fprintln(h, pid, n)
			h.Write(s.memory[pid][n])
		}
	}
	for _, v := range []any{s.tree, s.extra} {
		b, err := cbor.MarshalFiles(v, cbor.Files{Put: func(fd int) (uint64, error) {
			own, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err != nil {
				return 0, err
			}
			defer own.Close()
			_, err = io.Copy(h, own)
			return 0, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x %s", h.Sum(nil), uppertest.Digest(t, s.dir))
}

// stored reads a record back as a state, with files in a new directory.
func stored(t failer, r *durable.Repository, id, dir string) *state {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(id, err)
		}
	}
	rec, err := r.Get(ctx, id)
	must(err)
	defer rec.Close()
	s := &state{memory: map[int]memory{}, dir: dir}
	s.tree, err = rec.Tree(ctx)
	must(err)
	must(rec.Section(ctx, "engine", &s.extra))
	for _, pid := range rec.PIDs() {
		m := memory{}
		s.memory[pid] = m
		must(rec.Pages(ctx, pid, func(r durable.Run) error {
			for i := uint64(0); i < r.Len; i += page {
				p := make([]byte, page)
				if r.Data != nil {
					copy(p, r.Data[i:])
				}
				m[(r.Addr+i)/page] = p
			}
			return nil
		}))
	}
	must(os.Mkdir(dir, 0o700))
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(err)
	defer unix.Close(fd)
	must(rec.RestoreUpper(ctx, fd))
	return s
}

// close frees what the state of a record has.
func (s *state) close() {
	_ = s.extra.Note.Close()
	for _, f := range s.tree.Files {
		if f.Blob != nil {
			_ = f.Blob.Close()
		}
	}
	for _, sh := range s.tree.Shared {
		_ = sh.Close()
	}
}
