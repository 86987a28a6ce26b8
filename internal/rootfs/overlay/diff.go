package overlay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// comparison walks two merged trees over the same layers side by side. A
// directory that is the same places of layers on both sides is not entered,
// so the cost is that of what the uppers hold.
type comparison struct {
	ctx     context.Context
	a, b    *view
	changes []rootfs.Change
	listed  int // bytes of these, about
}

// mostListed bounds what a comparison gives, in bytes: a deep tree of long names has
// more in its paths than in itself.
const mostListed = 30 << 20

func (s *Store) diff(ctx context.Context, a, b string) ([]rootfs.Change, error) {
	c := &comparison{ctx: ctx}
	for _, side := range []struct {
		id string
		v  **view
	}{{a, &c.a}, {b, &c.b}} {
		v, done, err := s.still(side.id)
		if err != nil {
			return nil, rootfs.Errorf("compare %s with %s: %w", a, b, err)
		}
		defer done()
		*side.v = v
	}
	if err := c.dirs("", c.a.root(), c.b.root()); err != nil {
		return nil, rootfs.Errorf("compare %s with %s: %w", a, b, err)
	}
	slices.SortFunc(c.changes, func(x, y rootfs.Change) int { return cmp.Compare(x.Path, y.Path) })
	return c.changes, nil
}

// still returns a view of a snapshot, or of a passing snapshot of an upper.
func (s *Store) still(id string) (v *view, done func(), err error) {
	fd, err := s.openID(id)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd)
	info, err := btrfs.SubvolumeInfo(fd)
	if err != nil {
		return nil, nil, err
	}
	name := id
	var release func()
	if info.ReadOnly {
		release = s.reaper.pin(id)
	} else {
		// Its name is one that is deleted when the store is opened next.
		name = fmt.Sprintf("%sdiff-%d-%d", removedPrefix, info.ID, s.passing.Add(1))
		r := btrfs.NewRequest(0)
		defer r.Close()
		if err := r.Snapshot(fd, s.pool, name, true); err != nil {
			return nil, nil, err
		}
		release = func() { s.reaper.add(name) }
	}
	up, err := openIn(s.pool, name+"/"+upperDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		release()
		return nil, nil, err
	}
	v = &view{trees: []int{up}, first: rootfs.Upper, held: newHeld()}
	for _, l := range s.layers {
		v.trees = append(v.trees, l.plain)
	}
	return v, func() { v.held.Close(); unix.Close(up); release() }, nil
}

func (c *comparison) add(path string, k rootfs.Kind) {
	c.changes = append(c.changes, rootfs.Change{Path: path, Kind: k})
	c.listed += len(path) + 24
}

// goes returns an error when the comparison is to end.
func (c *comparison) goes() error {
	if err := c.ctx.Err(); err != nil {
		return fault.New(fault.Canceled, "%w", err)
	}
	if c.listed > mostListed {
		return fault.New(fault.Exhausted, "more files differ than can be listed: %d, and others", len(c.changes)).
			WithHint("compare with a checkpoint that is nearer")
	}
	return nil
}

// dirs compares two directories that have the same path.
func (c *comparison) dirs(at string, a, b node) error {
	if err := c.goes(); err != nil {
		return err
	}
	if sameLayers(a, b) {
		return nil
	}
	names, err := c.a.list(a)
	if err != nil {
		return err
	}
	more, err := c.b.list(b)
	if err != nil {
		return err
	}
	maps.Copy(names, more)
	for name := range names {
		if err := c.goes(); err != nil {
			return err
		}
		x, err := c.a.lookup(a, name)
		if err != nil {
			return err
		}
		y, err := c.b.lookup(b, name)
		if err != nil {
			return err
		}
		if err := c.entries(at+"/"+name, x, y); err != nil {
			return err
		}
	}
	return nil
}

// entries compares what the two sides show at a path; nil is nothing.
func (c *comparison) entries(at string, x, y *entry) error {
	switch {
	case x == nil && y == nil:
		return nil
	case x == nil:
		return c.all(at, c.b, y, rootfs.Added)
	case y == nil:
		return c.all(at, c.a, x, rootfs.Deleted)
	}
	same, err := c.same(x, y)
	if err != nil {
		return err
	}
	if !same {
		c.add(at, rootfs.Modified)
	}
	switch {
	case x.isDir() && y.isDir():
		return c.dirs(at, x.dirs, y.dirs)
	case x.isDir():
		return c.below(at, c.a, x, rootfs.Deleted)
	case y.isDir():
		return c.below(at, c.b, y, rootfs.Added)
	}
	return nil
}

// all reports an entry and everything below it.
func (c *comparison) all(at string, v *view, e *entry, k rootfs.Kind) error {
	c.add(at, k)
	if !e.isDir() {
		return nil
	}
	return c.below(at, v, e, k)
}

func (c *comparison) below(at string, v *view, e *entry, k rootfs.Kind) error {
	if err := c.goes(); err != nil {
		return err
	}
	names, err := v.list(e.dirs)
	if err != nil {
		return err
	}
	for name := range names {
		if err := c.goes(); err != nil {
			return err
		}
		sub, err := v.lookup(e.dirs, name)
		if err != nil {
			return err
		}
		if sub != nil {
			if err := c.all(at+"/"+name, v, sub, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameLayers reports whether both directories are the same places in layers
// alone.
func sameLayers(a, b node) bool {
	return len(a) > 0 && a[0].tree > 0 && slices.Equal(a, b)
}

// same compares two entries: kind, owner, mode, extended attributes, and for
// all but directories device, time of modification and content.
func (c *comparison) same(x, y *entry) (bool, error) {
	if x.tree > 0 && x.place == y.place {
		return true, nil // the same file of a layer
	}
	s, t := &x.stat, &y.stat
	if s.Mode != t.Mode || s.Uid != t.Uid || s.Gid != t.Gid {
		return false, nil
	}
	if !x.isDir() && (s.Mtim != t.Mtim || s.Rdev != t.Rdev || s.Size != t.Size) {
		return false, nil
	}
	f, err := c.a.open(x.place, unix.O_PATH)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: x.path, Err: err}
	}
	defer unix.Close(f)
	g, err := c.b.open(y.place, unix.O_PATH)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: y.path, Err: err}
	}
	defer unix.Close(g)
	xa, err := xattrs(f)
	if err != nil {
		return false, &os.PathError{Op: "listxattr", Path: x.path, Err: err}
	}
	ya, err := xattrs(g)
	if err != nil {
		return false, &os.PathError{Op: "listxattr", Path: y.path, Err: err}
	}
	if !slices.Equal(xa, ya) {
		return false, nil
	}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return sameLink(f, g)
	case unix.S_IFREG:
		if x.tree == 0 && y.tree == 0 {
			same, err := btrfs.SameExtents(c.a.trees[0], s.Ino, c.b.trees[0], t.Ino)
			if err != nil || same {
				return same, err
			}
		}
		return sameContent(f, g)
	}
	return true, nil
}

func sameLink(f, g int) (bool, error) {
	a, b := make([]byte, unix.PathMax), make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(f, "", a)
	if err != nil {
		return false, err
	}
	m, err := unix.Readlinkat(g, "", b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(a[:n], b[:m]), nil
}

// sameContent reads two regular files that are open with O_PATH.
func sameContent(f, g int) (bool, error) {
	a, err := os.Open(procPath(f))
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := os.Open(procPath(g))
	if err != nil {
		return false, err
	}
	defer b.Close()
	x, y := make([]byte, 128<<10), make([]byte, 128<<10)
	for at := int64(0); ; {
		// Where both have a hole they are alike: a file of terabytes may be all hole.
		nextA, errA := nextData(a, at)
		nextB, errB := nextData(b, at)
		if err := errors.Join(errA, errB); err != nil {
			return false, err
		}
		at = min(nextA, nextB)
		n, errA := readAt(a, x, at)
		m, errB := readAt(b, y, at)
		switch {
		case errA != nil || errB != nil:
			return false, errors.Join(errA, errB)
		case !bytes.Equal(x[:n], y[:m]):
			return false, nil
		case n == 0:
			return true, nil // their lengths were compared before
		}
		at += int64(n)
	}
}

// nextData is where data begins, from an offset on; behind the last, a place that
// no file reaches.
func nextData(f *os.File, from int64) (int64, error) {
	at, err := unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return math.MaxInt64 - (1 << 20), nil
	}
	return at, err
}

// readAt fills p as far as the file goes.
func readAt(f *os.File, p []byte, at int64) (int, error) {
	n, err := f.ReadAt(p, at)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}
