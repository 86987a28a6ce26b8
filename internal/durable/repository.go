package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandtree/sandtree/internal/durable/chunkstore"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
)

// Options of a repository.
type Options struct {
	// Log gets what is not an error of one call; nil for slog's default.
	Log *slog.Logger
}

// Repository is an open repository.
type Repository struct {
	dir    string
	log    *slog.Logger
	chunks *chunkstore.Store
}

const (
	recordsDir = "records"
	formatFile = "format"
	// formatText is what the format file of a repository of this version
	// holds.
	formatText = "sandtree repository 1\n"
)

var failRemoved = failpoint.New("durable.remove.removed")

// Open opens the repository in a directory, making it if there is none. The
// directory above must exist. A directory that is something else is refused.
func Open(dir string, o Options) (*Repository, error) {
	r := &Repository{dir: dir, log: o.Log}
	if r.log == nil {
		r.log = slog.Default()
	}
	if err := r.open(); err != nil {
		return nil, disk.Errorf("open repository %s: %w", dir, err)
	}
	return r, nil
}

func (r *Repository) open() error {
	err := os.Mkdir(r.dir, 0o700)
	if err == nil {
		err = disk.SyncDir(filepath.Dir(r.dir))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	text, err := os.ReadFile(r.path(formatFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r.create()
	}
	if err != nil {
		return err
	}
	if string(text) != formatText {
		return fault.New(fault.Unsupported, "it says %.80q of its format, where this version reads %q", text, formatText)
	}
	return r.openParts()
}

func (r *Repository) openParts() (err error) {
	if err := os.Mkdir(r.path(recordsDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	r.chunks, err = chunkstore.Open(r.dir)
	return err
}

// create makes a repository. Its format file comes last, so that a directory
// without one has nothing of worth.
func (r *Repository) create() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !slices.Contains([]string{recordsDir, "packs", "condemned", "leases", "tmp"}, e.Name()) {
			return fault.New(fault.Invalid, "the directory has %q in it and is no repository", e.Name())
		}
	}
	if err := r.openParts(); err != nil {
		return err
	}
	l, err := r.chunks.Lease()
	if err != nil {
		return err
	}
	err = disk.WriteFile(r.chunks.Temp(l, "format"), r.path(formatFile), []byte(formatText))
	if errors.Is(err, fs.ErrExist) { // another process was first
		err = nil
	}
	return errors.Join(err, l.Release())
}

func (r *Repository) path(elem ...string) string {
	return filepath.Join(append([]string{r.dir}, elem...)...)
}

// Close releases the repository's descriptors. Open records must be closed
// before.
func (r *Repository) Close() error { return r.chunks.Close() }

// load reads a record.
func (r *Repository) load(id string) (*record, error) {
	if err := validID(id); err != nil {
		return nil, err
	}
	f, err := os.Open(r.path(recordsDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "there is no record %s", id)
	}
	if err != nil {
		return nil, disk.Errorf("read record %s: %w", id, err)
	}
	defer f.Close()
	b, err := readBounded(f, maxRecord+1024)
	if err != nil {
		return nil, disk.Errorf("read record %s: %w", id, err)
	}
	rec, err := decodeRecord(b)
	if err == nil && rec.Info.ID != id {
		err = fmt.Errorf("%w: it is of %s", errCorrupt, rec.Info.ID)
	}
	if err != nil {
		return nil, disk.Errorf("read record %s: %w", id, err)
	}
	return rec, nil
}

// ids lists the names of all records, sorted.
func (r *Repository) ids() ([]string, error) {
	entries, err := os.ReadDir(r.path(recordsDir))
	if err != nil {
		return nil, disk.Errorf("list records: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if validID(e.Name()) == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// List returns all records, parents before children, older before younger.
// Records that cannot be read are in the joined error, beside the list of
// those that can.
func (r *Repository) List(ctx context.Context) ([]Info, error) {
	ids, err := r.ids()
	if err != nil {
		return nil, err
	}
	var out []Info
	var errs []error
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, fault.New(fault.Canceled, "list records: %w", err)
		}
		switch rec, err := r.load(id); {
		case err == nil:
			out = append(out, rec.Info)
		case !fault.Is(err, fault.NotFound): // that was removed just now
			errs = append(errs, err)
		}
	}
	return order(out), errors.Join(errs...)
}

// order sorts records: parents before children, else by age.
func order(in []Info) []Info {
	slices.SortStableFunc(in, func(a, b Info) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	rest := make(map[string]Info, len(in))
	for _, i := range in {
		rest[i.ID] = i
	}
	out := make([]Info, 0, len(in))
	for _, i := range in {
		from := len(out)
		for { // up to a root, or to what is out already; a circle ends there, too
			if _, ok := rest[i.ID]; !ok {
				break
			}
			delete(rest, i.ID)
			out = append(out, i)
			parent, ok := rest[i.Parent]
			if !ok {
				break
			}
			i = parent
		}
		slices.Reverse(out[from:])
	}
	return out
}

// Remove takes a record away, durably. Those that have it open go on reading.
// Its space comes back by [Repository.Collect].
func (r *Repository) Remove(id string) error {
	if err := validID(id); err != nil {
		return err
	}
	err := os.Remove(r.path(recordsDir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.NotFound, "there is no record %s", id)
	}
	if err == nil {
		err = failRemoved.Hit()
	}
	if err == nil {
		err = disk.SyncDir(r.path(recordsDir))
	}
	if err != nil {
		return disk.Errorf("remove record %s: %w", id, err)
	}
	return nil
}
