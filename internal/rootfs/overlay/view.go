package overlay

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/rootfs"
)

// A view merges an upper and the layers as overlayfs does, from outside and
// without a mount, so that it can say where each thing lies. It knows whiteouts,
// opaque directories and redirects (Documentation/filesystems/overlayfs.rst;
// fs/overlayfs/namei.c is what decides). It reads snapshots and layers only:
// what changes under it confuses it.
type view struct {
	trees []int // directories: the upper, if there is one, then the layers
	first int   // Location.Layer of trees[0]
	held  *held // what a walk has open, or nil
}

// place is a file in one tree, by its path there ("." for the root).
type place struct {
	tree int
	path string
}

// node is a directory of the merged tree: the places that merge in it, upper
// first.
type node []place

// entry is what a name in a node shows.
type entry struct {
	place
	stat unix.Stat_t
	dirs node // for a directory
}

func (e *entry) isDir() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

func (v *view) root() node {
	n := make(node, len(v.trees))
	for i := range n {
		n[i] = place{i, "."}
	}
	return n
}

func (v *view) location(p place) rootfs.Location {
	return rootfs.Location{Layer: v.first + p.tree, Path: p.path}
}

// lookup finds a name in a directory; it returns nil where there is none.
func (v *view) lookup(dir node, name string) (*entry, error) {
	var found *entry
	look := v.look
	for i := 0; i < len(dir); i++ {
		at := place{dir[i].tree, in(dir[i].path, name)}
		got, err := look(at)
		if err != nil {
			return nil, err
		}
		if got.absent {
			if got.stop {
				break
			}
			continue
		}
		if !got.isDir() {
			if found == nil {
				found = &got.entry
			}
			break // it covers what is below, or is covered by a directory
		}
		if found == nil {
			found = &got.entry
		}
		found.dirs = append(found.dirs, at)
		if got.stop {
			break
		}
		switch {
		case strings.HasPrefix(got.redirect, "/"):
			// From the roots of all trees below this one.
			dir, name, i, look = v.root()[at.tree+1:], got.redirect[1:], -1, v.lookAlong
		case got.redirect != "":
			name = got.redirect
		}
	}
	return found, nil
}

// seen is what one tree has at a path.
type seen struct {
	entry
	absent   bool
	stop     bool // nothing below this tree shows through
	redirect string
}

// lookAlong looks at the path of a redirect, which was not walked name by name
// in this tree: a directory on the way may be absent, covered or opaque in it.
func (v *view) lookAlong(p place) (seen, error) {
	opaque := false
	for i := range p.path {
		if p.path[i] != '/' {
			continue
		}
		up, err := v.look(place{p.tree, p.path[:i]})
		if err != nil {
			return up, err
		}
		if up.absent || !up.isDir() {
			return seen{absent: true, stop: opaque || up.stop || !up.absent}, nil
		}
		opaque = opaque || up.stop
	}
	s, err := v.look(p)
	s.stop = s.stop || opaque
	return s, err
}

func (v *view) look(p place) (seen, error) {
	s := seen{entry: entry{place: p}}
	fd, err := v.open(p, unix.O_PATH)
	switch {
	case errors.Is(err, unix.ENOENT):
		s.absent = true
		return s, nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		s.absent, s.stop = true, true
		return s, nil
	case err != nil:
		return s, &os.PathError{Op: "open", Path: p.path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &s.stat); err != nil {
		return s, &os.PathError{Op: "stat", Path: p.path, Err: err}
	}
	if s.stat.Mode&unix.S_IFMT == unix.S_IFCHR && s.stat.Rdev == 0 { // a whiteout
		s.absent, s.stop = true, true
		return s, nil
	}
	if !s.isDir() {
		return s, nil
	}
	opaque, err := getxattr(fd, "trusted.overlay.opaque")
	if err != nil {
		return s, &os.PathError{Op: "getxattr", Path: p.path, Err: err}
	}
	redirect, err := getxattr(fd, "trusted.overlay.redirect")
	if err != nil {
		return s, &os.PathError{Op: "getxattr", Path: p.path, Err: err}
	}
	s.stop, s.redirect = string(opaque) == "y", string(redirect)
	return s, nil
}

// list returns the names in a directory, those of whiteouts included.
func (v *view) list(dir node) (map[string]struct{}, error) {
	names := map[string]struct{}{}
	for _, p := range dir {
		fd, err := v.open(p, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: p.path, Err: err}
		}
		f := os.NewFile(uintptr(fd), p.path)
		ns, err := f.Readdirnames(-1)
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, n := range ns {
			names[n] = struct{}{}
		}
	}
	return names, nil
}

// maxPath keeps a path below PATH_MAX, with room for what is put before it.
const maxPath = 4000

// openIn opens a path of any length in a tree, which no symbolic link or ".."
// leads out of: what a layer holds is not trusted.
func openIn(tree int, p string, flags uint64) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	at := tree
	for len(p) > maxPath {
		cut := strings.LastIndexByte(p[:maxPath], '/')
		if cut < 0 {
			break
		}
		step := how
		step.Flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		next, err := unix.Openat2(at, p[:cut], &step)
		if at != tree {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at, p = next, p[cut+1:]
	}
	fd, err = openat2(at, p, &how)
	if at != tree {
		unix.Close(at)
	}
	return fd, err
}

// openat2 retries what the kernel gave up because a rename elsewhere made the
// check of RESOLVE_BENEATH uncertain (EAGAIN, openat2(2)).
func openat2(at int, p string, how *unix.OpenHow) (fd int, err error) {
	for {
		fd, err = unix.Openat2(at, p, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
