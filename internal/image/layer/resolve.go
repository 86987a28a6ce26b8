package layer

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
)

// maxLinks is how many symbolic links a path may lead through, as in
// path_resolution(7).
const maxLinks = 40

// place is a directory of the view with the way to it, without symbolic links.
type place struct {
	names []string
	dirs  []*erofs.Node // the root, then one for each name
}

func (p place) dir() *erofs.Node { return p.dirs[len(p.dirs)-1] }

// splitPath returns the parts of an entry's path; none for the root. A leading
// slash means the root too. A path that leads out of the root is refused.
func splitPath(name string) ([]string, error) {
	if len(name) >= unix.PathMax {
		return nil, fault.New(fault.Invalid, "path of %d bytes: longer than Linux allows", len(name))
	}
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if name == "" || clean == "." {
		return nil, nil
	}
	parts := strings.Split(clean, "/")
	if parts[0] == ".." {
		return nil, fault.New(fault.Invalid, "path %.200q leads out of the image", name)
	}
	for _, p := range parts {
		if err := erofs.CheckName(p); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// resolve finds the directory of a path in the view, as the kernel would for a
// process whose root is the view's. With create, missing directories are
// made, owned by 0:0 with mode 0755.
func (a *applier) resolve(parts []string, create bool) (place, error) {
	at := place{dirs: []*erofs.Node{a.view.Root}}
	todo := slices.Clone(parts)
	for links, length := 0, 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if n := len(at.names); n > 0 {
				length -= len(at.names[n-1]) + 1
				at = place{at.names[:n-1], at.dirs[:n]}
			}
			continue
		}
		c := at.dir().Child(name)
		switch {
		case c == nil && !create:
			return place{}, fault.New(fault.Invalid, "directory %.200q does not exist", strings.Join(append(at.names, name), "/"))
		case c == nil:
			if err := erofs.CheckName(name); err != nil {
				return place{}, err
			}
			if err := a.count(); err != nil {
				return place{}, err
			}
			a.put(at, name, erofs.NewDir(0o755))
			c = at.dir().Child(name)
		case c.Kind() == unix.S_IFLNK:
			if links++; links > maxLinks {
				return place{}, fault.New(fault.Invalid, "path leads through more than %d symbolic links", maxLinks)
			}
			if strings.HasPrefix(c.Target, "/") {
				at, length = place{dirs: at.dirs[:1]}, 0
			}
			todo = append(strings.Split(c.Target, "/"), todo...)
			continue
		case !c.IsDir():
			return place{}, fault.New(fault.Invalid, "%.200q is no directory", strings.Join(append(at.names, name), "/"))
		}
		if length += len(name) + 1; length >= unix.PathMax {
			return place{}, fault.New(fault.Invalid, "path with its symbolic links followed: longer than Linux allows")
		}
		at = place{append(at.names, name), append(at.dirs, c)}
	}
	return at, nil
}

// diffDir returns the directory of the layer's difference at a place of the
// view. Directories on the way that the layer has not named itself get the
// view's attributes.
func (a *applier) diffDir(at place) *erofs.Node {
	d := a.diff.Root
	for i, name := range at.names {
		c := d.Child(name)
		if c == nil || !c.IsDir() {
			c = putDir(d, name, at.dirs[i+1])
		}
		d = c
	}
	return d
}
