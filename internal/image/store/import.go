package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

// Import is an image on its way into the store. It is for one goroutine. Until
// Commit nothing of it is seen; End drops what was not committed.
type Import struct {
	s    *Store
	lock *os.File
}

// Begin starts an import. The caller ends it with End, also after Commit.
func (s *Store) Begin() (*Import, error) {
	lock, err := lockFile(s.path(importLock), unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("begin import: %w", cause.System(err))
	}
	return &Import{s: s, lock: lock}, nil
}

// TempDir is a directory on the store's disk for files without a name.
func (i *Import) TempDir() string { return i.s.path(tmpDir) }

// End ends the import and removes what it has left, its layers included if it
// was not committed.
func (i *Import) End() error {
	if err := i.lock.Close(); err != nil {
		return err
	}
	_, err := i.s.GC()
	return err
}

// AddLayer makes a layer from what write puts into a file. An equal layer that
// the store has already is kept in its place.
func (i *Import) AddLayer(ctx context.Context, write func(*os.File) error) (Layer, error) {
	f, err := os.CreateTemp(i.s.path(tmpDir), "layer-")
	if err != nil {
		return Layer{}, fmt.Errorf("add layer: %w", cause.System(err))
	}
	l, err := i.addLayer(ctx, f, write)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if rerr := os.Remove(f.Name()); rerr != nil && !errors.Is(rerr, os.ErrNotExist) && err == nil {
		err = rerr
	}
	if err != nil {
		return Layer{}, fmt.Errorf("add layer: %w", cause.System(err))
	}
	return l, nil
}

func (i *Import) addLayer(ctx context.Context, f *os.File, write func(*os.File) error) (Layer, error) {
	if err := write(f); err != nil {
		return Layer{}, err
	}
	l, err := identify(ctx, f)
	if err != nil {
		return Layer{}, err
	}
	path, err := i.s.LayerPath(l.Digest)
	if err != nil {
		return Layer{}, err
	}
	if st, err := os.Stat(path); err == nil && st.Size() == l.Size {
		return l, nil
	}
	if err := f.Chmod(0o444); err != nil {
		return Layer{}, err
	}
	if err := f.Sync(); err != nil {
		return Layer{}, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return Layer{}, err
	}
	return l, syncDir(i.s.path(layersDir))
}

// identify reads a file from the start for its digest and size.
func identify(ctx context.Context, f *os.File) (Layer, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Layer{}, err
	}
	h := sha256.New()
	var size int64
	for {
		if err := ctx.Err(); err != nil {
			return Layer{}, cause.System(err)
		}
		n, err := io.CopyN(h, f, 16<<20)
		size += n
		if err == io.EOF {
			return Layer{Digest: "sha256:" + hex.EncodeToString(h.Sum(nil)), Size: size}, nil
		}
		if err != nil {
			return Layer{}, err
		}
	}
}

// Commit makes the image known. It sets the record's ID and Created. The error
// is of kind Exists if another image has the name.
func (i *Import) Commit(ctx context.Context, r Record) (Record, error) {
	r.ID, r.Created = newID(), time.Now().UTC()
	if err := CheckName(r.Name); err != nil {
		return Record{}, err
	}
	if err := i.commit(ctx, &r); err != nil {
		return Record{}, fmt.Errorf("record image %s: %w", r.Name, cause.System(err))
	}
	return r, nil
}

func (i *Import) commit(ctx context.Context, r *Record) error {
	for _, l := range r.Layers {
		path, err := i.s.LayerPath(l.Digest)
		if err != nil {
			return err
		}
		if _, err := os.Stat(path); err != nil {
			return fault.New(fault.Internal, "layer is not in the store: %w", err)
		}
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	unlock, err := i.s.lockRecords()
	if err != nil {
		return err
	}
	defer unlock()
	if err := i.s.Free(r.Name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return cause.System(err)
	}
	if err := i.s.writeRecord(r.ID, append(b, '\n')); err != nil {
		return err
	}
	return syncDir(i.s.path(imagesDir))
}

// Free returns an error of kind Exists if an image has the name, or Invalid if
// none can. It is for asking early; Commit asks again.
func (s *Store) Free(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	r, err := s.Get(name)
	switch {
	case err == nil:
		return fault.New(fault.Exists, "image %q exists already (%s)", name, r.ID).
			WithHint("remove it with: sandtree image rm %s", name)
	case fault.Is(err, fault.NotFound):
		return nil
	}
	return err
}

// writeRecord writes a record so that it is there whole or not at all.
func (s *Store) writeRecord(id string, content []byte) (err error) {
	f, err := os.CreateTemp(s.path(tmpDir), "record-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), s.recordPath(id))
}

// newID returns an id of 80 random bits.
func newID() string {
	var b [10]byte
	rand.Read(b[:]) // does not fail, see crypto/rand
	return "im-" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}
