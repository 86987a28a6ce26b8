package upper

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
)

// order makes sure that entries come in the order of a walk.
type order struct {
	path  []uint64        // numbers of the directories that the walk is in
	names map[uint64]name // the first of each file
}

// name is where a file is.
type name struct {
	dir  uint64
	name string
	kind uint32 // of st_mode
}

// next places an entry. It tells how many directories are left before it; a
// directory is entered with it.
func (o *order) next(e *Entry) (left int, err error) {
	if (e.Dir == 0) != (len(o.path) == 0) {
		return 0, fmt.Errorf("%w: %q is not where it belongs", chunk.ErrCorrupt, e.Name)
	}
	if o.names == nil {
		o.names = map[uint64]name{}
	}
	first, known := o.names[e.Ino]
	if known != e.Again || first.kind == unix.S_IFDIR {
		return 0, fmt.Errorf("%w: %q is file %d", chunk.ErrCorrupt, e.Name, e.Ino)
	}
	for len(o.path) > 0 && o.path[len(o.path)-1] != e.Dir {
		o.path = o.path[:len(o.path)-1]
		left++
	}
	if e.Dir != 0 && len(o.path) == 0 {
		return 0, fmt.Errorf("%w: %q is in directory %d, which is not there", chunk.ErrCorrupt, e.Name, e.Dir)
	}
	if !known {
		o.names[e.Ino] = name{e.Dir, e.Name, e.Mode & unix.S_IFMT}
	}
	if e.Mode&unix.S_IFMT == unix.S_IFDIR {
		o.path = append(o.path, e.Ino)
	}
	return left, nil
}

// Measure goes through all entries and tells what the manifest should say of
// itself.
func (m *Manifest) Measure(g content.Getter) (entries, bytes int64, err error) {
	var o order
	err = m.Each(g, nil, func(e *Entry) error {
		entries++
		if e.Content != nil {
			bytes += e.Content.Bytes()
		}
		_, err := o.next(e)
		return err
	})
	return entries, bytes, err
}
