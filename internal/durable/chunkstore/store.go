package chunkstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/lease"
	"github.com/sandtree/sandtree/internal/durable/pack"
	"github.com/sandtree/sandtree/internal/fault"
)

// Directories of a store.
const (
	packsDir     = "packs"
	condemnedDir = "condemned"
	leasesDir    = "leases"
	tmpDir       = "tmp"
)

// Store is an open store.
type Store struct {
	dir string

	mu    sync.Mutex
	packs map[string]*packFile // by name
	index map[chunk.ID]place
	bad   map[string]error // packs that cannot be read
	open  int              // files that are open
}

// packFile is a pack that the store knows. Its fields are guarded by Store.mu.
type packFile struct {
	name      string
	dir       string // relative
	size      int64
	entries   []pack.Entry
	condemned bool
	file      *os.File
}

// place is where a chunk is.
type place struct {
	pack *packFile
	i    int32
}

// Open opens the store in an existing directory, making what it lacks.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir, packs: map[string]*packFile{}, index: map[chunk.ID]place{}, bad: map[string]error{}}
	for _, d := range []string{packsDir, condemnedDir, leasesDir, tmpDir} {
		if err := os.Mkdir(s.path(d), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, disk.Errorf("open store of chunks: %w", err)
		}
	}
	if err := disk.SyncDir(dir); err != nil {
		return nil, disk.Errorf("open store of chunks: %w", err)
	}
	return s, nil
}

// Close closes the store's files.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, p := range s.packs {
		errs = append(errs, s.closePack(p))
	}
	return errors.Join(errs...)
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// Lease takes a lease. Chunks that can be read now can be read until it is
// released.
func (s *Store) Lease() (*lease.Lease, error) {
	l, err := lease.Take(s.path(leasesDir))
	if err != nil {
		return nil, disk.Errorf("take a lease: %w", err)
	}
	return l, nil
}

// Temp is a name in the store's directory for an unfinished file of a lease's
// holder. What is there when the lease has ended is deleted by a collection.
func (s *Store) Temp(l *lease.Lease, name string) string { return s.path(tmpDir, l.Name()+"."+name) }

// Refresh looks for packs that other processes have published, condemned or
// deleted.
func (s *Store) Refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refresh()
}

// refresh looks at packs first: one that is condemned or comes back meanwhile
// is seen at least once.
func (s *Store) refresh() error {
	found, err := s.look()
	if err != nil {
		return disk.Errorf("list packs: %w", err)
	}
	changed := false
	for name, p := range s.packs {
		now, ok := found[name]
		switch {
		case !ok:
			_ = s.closePack(p)
			delete(s.packs, name)
			changed = true
		case now.dir != p.dir:
			changed = changed || now.condemned != p.condemned
			p.dir, p.condemned = now.dir, now.condemned
		}
	}
	for name := range s.bad {
		if _, ok := found[name]; !ok {
			delete(s.bad, name)
		}
	}
	for name, p := range found {
		if s.packs[name] != nil || s.bad[name] != nil {
			continue
		}
		switch err := s.load(p); {
		case errors.Is(err, fs.ErrNotExist): // it moved, or went, just now
		case err != nil && !errors.Is(err, pack.ErrCorrupt):
			return disk.Errorf("read pack %s: %w", name, err)
		case err != nil:
			s.bad[name] = err
		default:
			s.packs[name] = p
			s.add(p)
		}
	}
	if changed {
		s.rebuild()
	}
	return nil
}

func (s *Store) look() (map[string]*packFile, error) {
	found := map[string]*packFile{}
	list := func(dir string, condemned bool) error {
		entries, err := os.ReadDir(s.path(dir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a round that has just ended
		}
		for _, e := range entries {
			if name := e.Name(); pack.IsName(name) && (found[name] == nil || found[name].condemned) {
				found[name] = &packFile{name: name, dir: dir, condemned: condemned}
			}
		}
		return err
	}
	// Twice around: a pack may come back while the condemned are looked at.
	for range 2 {
		if err := list(packsDir, false); err != nil {
			return nil, err
		}
		rounds, err := s.rounds()
		if err != nil {
			return nil, err
		}
		for _, r := range rounds {
			if err := list(filepath.Join(condemnedDir, r), true); err != nil {
				return nil, err
			}
		}
		if len(rounds) == 0 {
			break
		}
	}
	return found, nil
}

func (s *Store) rounds() ([]string, error) {
	entries, err := os.ReadDir(s.path(condemnedDir))
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (s *Store) load(p *packFile) error {
	f, err := os.Open(s.path(p.dir, p.name))
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	p.size = st.Size()
	p.entries, err = pack.ReadIndex(f, p.size, p.name)
	return err
}

// add makes a pack's chunks known; packs in use go before condemned ones.
func (s *Store) add(p *packFile) {
	for i := range p.entries {
		if old, ok := s.index[p.entries[i].ID]; !ok || old.pack.condemned && !p.condemned {
			s.index[p.entries[i].ID] = place{p, int32(i)}
		}
	}
}

func (s *Store) rebuild() {
	clear(s.index)
	for _, p := range s.packs {
		s.add(p)
	}
}

// Corrupt lists packs that cannot be read, with what is wrong.
func (s *Store) Corrupt() map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]error, len(s.bad))
	for name, err := range s.bad {
		out[name] = err
	}
	return out
}

// Size is the length of all packs in bytes, and of those that are condemned.
func (s *Store) Size() (all, condemned int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.packs {
		all += p.size
		if p.condemned {
			condemned += p.size
		}
	}
	return all, condemned
}

func missing(id chunk.ID) error {
	return fault.New(fault.Internal, "chunk %s is in no pack: %w", id, chunk.ErrCorrupt)
}

// Length returns the length of a chunk.
func (s *Store) Length(id chunk.ID) (int, error) {
	_, e, err := s.find(id)
	return int(e.Length), err
}

// find looks for a chunk, also in packs that are new.
func (s *Store) find(id chunk.ID) (*packFile, pack.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.index[id]
	if !ok {
		if err := s.refresh(); err != nil {
			return nil, pack.Entry{}, err
		}
		if at, ok = s.index[id]; !ok {
			return nil, pack.Entry{}, missing(id)
		}
	}
	return at.pack, at.pack.entries[at.i], nil
}

// kept reports whether a chunk is in a pack in use.
func (s *Store) kept(id chunk.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.index[id]
	return ok && !at.pack.condemned
}

func describe(id chunk.ID, name string, err error) error {
	return fmt.Errorf("chunk %s in pack %s: %w", id, name, err)
}
