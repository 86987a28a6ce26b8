package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

// Store is a directory of images. Its methods may be used at the same time, by
// several processes too.
type Store struct {
	dir string
}

// The parts of the store's directory.
const (
	layersDir  = "layers"
	imagesDir  = "images"
	tmpDir     = "tmp"
	importLock = "lock"
	recordLock = "records.lock"
)

// Open opens the store in a directory, makes it if it is missing, and cleans up
// what a crash has left.
func Open(dir string) (*Store, error) {
	s := &Store{dir: dir}
	for _, d := range []string{layersDir, imagesDir, tmpDir} {
		// Readable by all: layers are mounted by another user than writes them.
		if err := os.MkdirAll(s.path(d), 0o755); err != nil {
			return nil, fmt.Errorf("open image store: %w", cause.System(err))
		}
	}
	// A damaged record stops the collection, since what it lists is unknown;
	// List reports it. The other images are of use all the same.
	if _, err := s.GC(); err != nil && !fault.Is(err, fault.Internal) {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	return s, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// List returns all images, by name.
func (s *Store) List() ([]Record, error) {
	entries, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return nil, fmt.Errorf("list images: %w", cause.System(err))
	}
	rs := []Record{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !idForm.MatchString(id) {
			continue
		}
		r, err := s.read(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list images: %w", err)
		}
		rs = append(rs, r)
	}
	byName(rs)
	return rs, nil
}

func (s *Store) read(id string) (Record, error) {
	b, err := os.ReadFile(s.recordPath(id))
	if err != nil {
		return Record{}, cause.System(err)
	}
	r, err := decode(b)
	if err == nil && r.ID != id {
		err = fault.New(fault.Internal, "image record %s: names itself %s", id, r.ID)
	}
	return r, err
}

func (s *Store) recordPath(id string) string { return s.path(imagesDir, id+".json") }

// Get returns the image of that name or id, or an error of kind NotFound.
func (s *Store) Get(ref string) (Record, error) {
	if idForm.MatchString(ref) {
		r, err := s.read(ref)
		if !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	} else {
		rs, err := s.List()
		if err != nil {
			return Record{}, err
		}
		for _, r := range rs {
			if r.Name == ref {
				return r, nil
			}
		}
	}
	return Record{}, fault.New(fault.NotFound, "image %q: no such image", ref).WithHint("sandtree image ls shows the images")
}

// Remove removes the image of that name or id, and the layers that no other
// image has. A layer that is mounted keeps its room on disk until it is no more.
func (s *Store) Remove(ref string) (Record, error) {
	r, err := s.remove(ref)
	if err != nil {
		return Record{}, err
	}
	if _, err := s.GC(); err != nil {
		return r, fmt.Errorf("remove layers of image %s: %w", r.Name, err)
	}
	return r, nil
}

func (s *Store) remove(ref string) (Record, error) {
	unlock, err := s.lockRecords()
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	r, err := s.Get(ref)
	if err != nil {
		return Record{}, err
	}
	err = os.Remove(s.recordPath(r.ID))
	if err == nil {
		err = syncDir(s.path(imagesDir))
	}
	if err != nil {
		return Record{}, fmt.Errorf("remove image %s: %w", r.Name, cause.System(err))
	}
	return r, nil
}

// LayerPath returns the file of a layer, which need not exist, or an error of
// kind Invalid for what is no digest.
func (s *Store) LayerPath(digest string) (string, error) {
	name, err := layerFile(digest)
	if err != nil {
		return "", err
	}
	return s.path(layersDir, name), nil
}

var digestForm = regexp.MustCompile(`^sha256:([0-9a-f]{64})$`)

func layerFile(digest string) (string, error) {
	m := digestForm.FindStringSubmatch(digest)
	if m == nil {
		return "", fault.New(fault.Invalid, "layer digest %.100q: not sha256: and 64 hexadecimal digits", digest)
	}
	return m[1] + ".erofs", nil
}

// Garbage is what a GC removed.
type Garbage struct {
	// Files is how many, Bytes their size.
	Files int
	Bytes int64
}

// GC removes layers that no image has, and unfinished files. While an Import
// runs it removes nothing, and no error is returned.
func (s *Store) GC() (Garbage, error) {
	lock, err := lockFile(s.path(importLock), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return Garbage{}, nil
	}
	if err != nil {
		return Garbage{}, fmt.Errorf("collect garbage: %w", cause.System(err))
	}
	defer lock.Close()
	g, err := s.collect()
	if err != nil {
		return g, fmt.Errorf("collect garbage: %w", cause.System(err))
	}
	return g, nil
}

func (s *Store) collect() (Garbage, error) {
	rs, err := s.List()
	if err != nil {
		return Garbage{}, err // what an unreadable record lists is unknown
	}
	keep := map[string]bool{}
	for _, r := range rs {
		for _, l := range r.Layers {
			name, err := layerFile(l.Digest)
			if err != nil {
				return Garbage{}, err
			}
			keep[filepath.Join(layersDir, name)] = true
		}
	}
	var g Garbage
	for _, dir := range []string{layersDir, tmpDir} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			return g, err
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if keep[name] {
				continue
			}
			if info, err := e.Info(); err == nil {
				g.Bytes += info.Size()
			}
			if err := os.Remove(s.path(name)); err != nil {
				return g, err
			}
			g.Files++
		}
	}
	return g, nil
}

// lockFile opens a file and locks it, see flock(2). Closing it unlocks.
func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, err
		}
	}
}

// lockRecords makes the caller the only one who changes records.
func (s *Store) lockRecords() (unlock func(), err error) {
	f, err := lockFile(s.path(recordLock), unix.LOCK_EX)
	if err != nil {
		return nil, fmt.Errorf("lock image records: %w", cause.System(err))
	}
	return func() { f.Close() }, nil
}

// syncDir makes renames in a directory last.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}
