package upper

import (
	"context"
	"fmt"
	"hash/fnv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/fault"
)

// A segment is cut at a name whose hash says so, when it has the least length,
// and in any case at the largest.
const (
	leastSegment   = 4 << 10
	largestSegment = 256 << 10
	cutOneIn       = 64
)

// Capture keeps the tree below an open directory, which does not change
// meanwhile. parent is an earlier manifest of it, or nil. It tells how many bytes
// of content were read.
func Capture(ctx context.Context, p content.Putter, g content.Getter, parent *Manifest, dir int) (m Manifest, read int64, err error) {
	c := &capture{ctx: ctx, p: p, g: g, seen: map[uint64]bool{}}
	defer c.path.close()
	if err := c.begin(parent, dir); err != nil {
		return Manifest{}, 0, err
	}
	if err := c.root(dir); err != nil {
		return Manifest{}, 0, err
	}
	if err := c.cut(); err != nil {
		return Manifest{}, 0, err
	}
	return c.m, c.read, nil
}

type capture struct {
	ctx    context.Context
	p      content.Putter
	g      content.Getter
	m      Manifest
	read   int64
	path   frames
	inodes map[uint64]inode  // nil if they cannot be told
	before map[uint64]*Entry // the parent's files
	seen   map[uint64]bool   // files that may have several names
	batch  [][]byte          // entries of the segment under way
	size   int
}

// begin finds out which files may be taken from the parent.
func (c *capture) begin(parent *Manifest, dir int) (err error) {
	c.m.Source, c.inodes, err = scan(dir)
	if err != nil || parent == nil || parent.Source != c.m.Source || c.inodes == nil {
		return err
	}
	c.before = map[uint64]*Entry{}
	return parent.Each(c.g, nil, func(e *Entry) error {
		if !e.Again {
			c.before[e.Ino] = e
		}
		return nil
	})
}

func (c *capture) root(dir int) error {
	own, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the root: %w", err)
	}
	defer unix.Close(own)
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err != nil {
		return fmt.Errorf("stat the root: %w", err)
	}
	e := attributes(&st)
	if e.Xattrs, err = readXattrs(procPath(own) + "/."); err != nil {
		return fmt.Errorf("the root: %w", err)
	}
	if err := c.add(e); err != nil {
		return err
	}
	c.path = frames{{st.Ino, own}}
	return c.walk()
}

// attributes are what stat(2) tells.
func attributes(st *unix.Stat_t) *Entry {
	e := &Entry{
		Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid,
		Accessed: timeOf(st.Atim), Modified: timeOf(st.Mtim),
	}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		e.Rdev = st.Rdev
	}
	return e
}

// walk goes through the tree without recursion: it may be deeper than a stack.
func (c *capture) walk() error {
	names, err := c.names()
	if err != nil {
		return err
	}
	rest := [][]dirent{names} // of each directory on the path
	for {
		n := len(rest) - 1
		if len(rest[n]) == 0 {
			if n == 0 {
				return nil
			}
			if err := c.path.pop(); err != nil {
				return err
			}
			rest = rest[:n]
			continue
		}
		next := rest[n][0]
		rest[n] = rest[n][1:]
		isDir, err := c.entry(next)
		if err != nil {
			return fmt.Errorf("file %q: %w", next.name, err)
		}
		if isDir {
			names, err := c.names()
			if err != nil {
				return fmt.Errorf("directory %q: %w", next.name, err)
			}
			rest = append(rest, names)
		}
	}
}

// names lists the directory that the walk is in.
func (c *capture) names() ([]dirent, error) {
	if err := c.ctx.Err(); err != nil {
		return nil, fault.New(fault.Canceled, "%w", err)
	}
	fd, err := unix.Openat(c.path.top().fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readDir(fd)
}

// entry keeps a name of the directory that the walk is in. A directory is
// entered.
func (c *capture) entry(d dirent) (isDir bool, err error) {
	e, err := c.unchanged(d)
	if e == nil && err == nil {
		e, err = c.look(d)
	}
	if err != nil {
		return false, err
	}
	if err := c.add(e); err != nil {
		return false, err
	}
	if e.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, nil
	}
	fd, err := unix.Openat(c.path.top().fd, d.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	c.path.push(e.Ino, fd)
	return true, nil
}

// unchanged makes an entry of the parent's, without looking at the file; nil if
// it has changed or is new.
func (c *capture) unchanged(d dirent) (*Entry, error) {
	was, now := c.before[d.ino], c.inodes[d.ino]
	if was == nil || was.Items == ([16]byte{}) || was.Items != now.items {
		return nil, nil
	}
	dir := c.path.top().ino
	if was.Mode&unix.S_IFMT != unix.S_IFDIR {
		if c.seen[d.ino] {
			return &Entry{Ino: d.ino, Dir: dir, Name: d.name, Again: true}, nil
		}
		c.seen[d.ino] = true
	}
	e := *was
	e.Dir, e.Name = dir, d.name
	for _, in := range e.Contents() {
		if err := in.Reuse(c.p, c.g); err != nil {
			return nil, err
		}
	}
	if e.Content != nil {
		c.m.Bytes += e.Content.Bytes()
	}
	return &e, nil
}

// look makes an entry of what is there.
func (c *capture) look(d dirent) (*Entry, error) {
	dir := c.path.top()
	var st unix.Stat_t
	if err := unix.Fstatat(dir.fd, d.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if c.seen[st.Ino] {
			return &Entry{Ino: st.Ino, Dir: dir.ino, Name: d.name, Again: true}, nil
		}
		c.seen[st.Ino] = true
	}
	e := attributes(&st)
	e.Dir, e.Name, e.Items = dir.ino, d.name, c.inodes[st.Ino].items
	if err := c.xattrs(e, entryPath(dir.fd, d.name)); err != nil {
		return nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return e, c.link(e, dir.fd)
	case unix.S_IFREG:
		return e, c.content(e, dir.fd, st.Size)
	}
	return e, nil
}

func (c *capture) xattrs(e *Entry, path string) error {
	x, err := readXattrs(path)
	if err != nil {
		return err
	}
	sum := 0
	for name, v := range x {
		sum += len(name) + len(v)
	}
	if sum <= inlineXattrs {
		e.Xattrs = x
		return nil
	}
	b, err := cbor.Marshal(x)
	if err != nil {
		return err
	}
	in, err := content.FromBytes(c.p, b)
	e.XattrsIn = &in
	return err
}

func (c *capture) link(e *Entry, dir int) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, e.Name, buf)
	e.Link = string(buf[:max(n, 0)])
	return err
}

// content keeps a regular file's content, or takes the parent's.
func (c *capture) content(e *Entry, dir int, size int64) error {
	e.Extents = c.inodes[e.Ino].extents
	if was := c.before[e.Ino]; was != nil && was.Content != nil && e.Extents != ([16]byte{}) && was.Extents == e.Extents && was.Content.Size == size {
		e.Content = was.Content
		c.m.Bytes += e.Content.Bytes()
		return e.Content.Reuse(c.p, c.g)
	}
	fd, err := unix.Openat(dir, e.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	kept, n, err := content.Write(c.p, fd, size)
	e.Content = &kept
	c.read += n
	c.m.Bytes += kept.Bytes()
	return err
}

// add puts an entry into the segment under way.
func (c *capture) add(e *Entry) error {
	if err := e.check(); err != nil {
		return fmt.Errorf("it cannot be kept: %w", err)
	}
	b, err := cbor.Marshal(e)
	if err != nil {
		return err
	}
	if c.size > 0 && c.size+len(b) > largestSegment {
		if err := c.cut(); err != nil {
			return err
		}
	}
	c.batch = append(c.batch, b)
	c.size += len(b)
	c.m.Entries++
	h := fnv.New32a()
	_, _ = h.Write([]byte(e.Name))
	if c.size >= leastSegment && h.Sum32()%cutOneIn == 0 {
		return c.cut()
	}
	return nil
}

// cut ends the segment under way.
func (c *capture) cut() error {
	if len(c.batch) == 0 {
		return nil
	}
	id, err := c.p.Put(cbor.Join(c.batch))
	c.m.Segments = append(c.m.Segments, id)
	c.batch, c.size = c.batch[:0], 0
	return err
}
