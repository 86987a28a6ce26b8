package memory

import (
	"strings"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Origins knows what the files are that the processes of a restored incarnation
// map. They are a layer's or a checkpoint's own, under other names than those
// that the program mapped them by, and are never written.
type Origins struct {
	byFile map[fileID][]origin
}

type fileID struct{ dev, ino uint64 }

// origin is a file as the program mapped it.
type origin struct {
	path    string
	deleted bool
}

// NewOrigins makes the record of an incarnation.
func NewOrigins() *Origins { return &Origins{byFile: map[fileID][]origin{}} }

// learn notes the files of a process that was just restored: now are its
// mappings as the kernel tells them, then those of the image.
func (o *Origins) learn(now, then []image.VMA) {
	if o == nil {
		return
	}
	for i := range now {
		v := &now[i]
		if v.Kind != image.FileBacked || v.Shared {
			continue
		}
		was := Find(then, v.Start)
		if was == nil || was.Kind != image.FileBacked || was.Shared {
			continue
		}
		id, at := fileID{v.Dev, v.Ino}, origin{was.Path, was.Deleted}
		known := false
		for _, k := range o.byFile[id] {
			known = known || k == at
		}
		if !known {
			o.byFile[id] = append(o.byFile[id], at)
		}
	}
}

// apply gives a mapping of such a file the name of its origin. Snapshots have
// the same inode numbers, but keep the end of the path.
func (o *Origins) apply(v *image.VMA) {
	if o == nil || v.Kind != image.FileBacked || v.Shared {
		return
	}
	known := o.byFile[fileID{v.Dev, v.Ino}]
	if len(known) == 0 {
		return
	}
	at := known[0]
	for _, k := range known {
		if strings.HasSuffix(v.Path, k.path) {
			at = k
			break
		}
	}
	v.Path, v.Deleted, v.Kept = at.path, at.deleted, true
}
