package overlay

import (
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// SnapshotFD implements [rootfs.Store].
func (s *Store) SnapshotFD(snapshot string) (fd int, err error) {
	if err = rootfs.ValidID(snapshot); err == nil {
		fd, err = mount.Clone(s.mapped, snapshot+"/"+upperDir)
	}
	if err != nil {
		return -1, rootfs.Errorf("files of snapshot %s: %w", snapshot, err)
	}
	return fd, nil
}

// Resolve implements [rootfs.Store].
func (s *Store) Resolve(snapshot, p string) (rootfs.Location, *os.File, error) {
	l, f, err := s.resolve(snapshot, p)
	if err != nil {
		return rootfs.Location{}, nil, rootfs.Errorf("resolve %s in %s: %w", p, snapshotName(snapshot), err)
	}
	return l, f, nil
}

func snapshotName(id string) string {
	if id == "" {
		return "the layers"
	}
	return "snapshot " + id
}

func (s *Store) resolve(snapshot, p string) (rootfs.Location, *os.File, error) {
	var none rootfs.Location
	if !strings.HasPrefix(p, "/") || path.Clean(p) != p {
		return none, nil, fault.New(fault.Invalid, "not a clean absolute path")
	}
	v := &view{}
	if snapshot != "" {
		if err := rootfs.ValidID(snapshot); err != nil {
			return none, nil, err
		}
		defer s.reaper.pin(snapshot)()
		up, err := s.openMapped(snapshot + "/" + upperDir)
		if err != nil {
			return none, nil, err
		}
		defer unix.Close(up)
		v.trees, v.first = append(v.trees, up), rootfs.Upper
	}
	for _, l := range s.layers {
		v.trees = append(v.trees, l.mapped)
	}
	e, err := v.walk(p)
	if err != nil {
		return none, nil, err
	}
	fd, err := openIn(v.trees[e.tree], e.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return none, nil, err
	}
	return v.location(e.place), os.NewFile(uintptr(fd), p), nil
}

// walk finds what an absolute path shows.
func (v *view) walk(p string) (*entry, error) {
	root := v.root()
	e := &entry{place: root[0], dirs: root}
	e.stat.Mode = unix.S_IFDIR
	for name := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		if name == "" {
			continue
		}
		next, err := v.lookup(e.dirs, name) // in what is no directory there is nothing
		if err != nil {
			return nil, err
		}
		if next == nil {
			return nil, fault.New(fault.NotFound, "no such file")
		}
		e = next
	}
	return e, nil
}
