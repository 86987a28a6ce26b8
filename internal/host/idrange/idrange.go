// Package idrange gives each family a range of host user and group ids.
//
// A family's ranges are the same for users and groups, and 65536 ids wide:
// inside, a sandbox has the ids 0 to 65535. The choice is kept in a file, so
// that a family has its ids back after a restart.
package idrange

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// First is the lowest id of the first range. Lower ones belong to
	// accounts, containers of other programs and systemd's dynamic users.
	First = 0x20000000
	// Size is the number of ids of a range.
	Size = 1 << 16

	// ranges is how many fit below the ids that programs take for negative
	// numbers.
	ranges = (0x7fff0000 - First) / Size
)

// Table maps families to ranges. It is safe for concurrent use.
type Table struct {
	path string

	mu    sync.Mutex
	index map[string]uint32
}

// Open reads the table from a file, which need not exist.
func Open(path string) (*Table, error) {
	t := &Table{path: path, index: map[string]uint32{}}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t, nil
	case err != nil:
		return nil, fault.New(fault.Internal, "read id ranges: %w", err)
	}
	if err := json.Unmarshal(b, &t.index); err != nil {
		return nil, fault.New(fault.Internal, "read id ranges: %s: %w", path, err).
			WithHint("remove the file; families are then given new ranges")
	}
	seen := map[uint32]string{}
	for f, i := range t.index {
		if o, twice := seen[i]; twice || i >= ranges {
			return nil, fault.New(fault.Internal, "read id ranges: %s: range %d of family %s is no range or has another family %s too", path, i, f, o).
				WithHint("remove the file; families are then given new ranges")
		}
		seen[i] = f
	}
	return t, nil
}

// Index is the number of the range that begins with an id, from 0 on.
func Index(base uint32) int { return int(base-First) / Size }

// Take returns the first id of a family's range, which it is given if it has
// none.
func (t *Table) Take(family string) (base uint32, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i, ok := t.index[family]; ok {
		return First + i*Size, nil
	}
	used := make(map[uint32]bool, len(t.index))
	for _, i := range t.index {
		used[i] = true
	}
	for i := range uint32(ranges) {
		if used[i] {
			continue
		}
		t.index[family] = i
		if err := t.write(); err != nil {
			delete(t.index, family)
			return 0, err
		}
		return First + i*Size, nil
	}
	return 0, fault.New(fault.Exhausted, "family %s: all %d ranges of user ids are taken", family, ranges).
		WithHint("remove templates that are not used")
}

// Drop gives a family's range back. None is no error.
func (t *Table) Drop(family string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := t.index[family]
	if !ok {
		return nil
	}
	delete(t.index, family)
	if err := t.write(); err != nil {
		t.index[family] = i
		return err
	}
	return nil
}

// write replaces the file; a crash leaves the old or the new one.
func (t *Table) write() error {
	b, err := json.Marshal(t.index)
	if err != nil {
		return fault.New(fault.Internal, "write id ranges: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(t.path), ".families-*")
	if err != nil {
		return writeError(err)
	}
	defer os.Remove(f.Name()) // gone already once it was renamed
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), t.path)
	}
	if err != nil {
		return writeError(err)
	}
	return nil
}

func writeError(err error) error {
	kind := fault.Internal
	if errors.Is(err, unix.ENOSPC) {
		kind = fault.Exhausted
	}
	return fault.New(kind, "write id ranges: %w", err)
}
