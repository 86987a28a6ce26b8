package erofs

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

// Info describes a written image.
type Info struct {
	// Size is the length of the image in bytes, a multiple of BlockSize.
	Size int64
	// Inodes is how many files it holds, hard links counted once.
	Inodes uint64
	// UUID is the file system's, derived from all that is in the image:
	// overlayfs needs lower layers to have different ones.
	UUID [16]byte
}

// Write writes the tree as an image to an empty sink. Equal trees with equal
// contents give equal bytes. Names may be any that [CheckName] allows.
//
// Errors are of kind Invalid if the format cannot hold the tree, Conflict if a
// content is shorter than its node says, Exhausted if the disk is full and
// Canceled or Deadline if ctx ended. The sink then holds no usable image.
func Write(ctx context.Context, sink Sink, t *Tree) (Info, error) {
	w := &writer{
		ctx:   ctx,
		out:   &output{sink: sink, next: firstSegment},
		meta:  segment{pos: rootOffset, end: firstSegment, buf: make([]byte, rootOffset)},
		links: map[*Node]*link{},
	}
	w.content.out = w.out
	info, err := w.run(t)
	if err != nil {
		return Info{}, fmt.Errorf("write EROFS image: %w", cause.System(err))
	}
	return info, nil
}

// writer is the state of one Write.
type writer struct {
	ctx     context.Context
	out     *output
	meta    segment
	content contentWriter
	links   map[*Node]*link
	dirs    []*dirPlace
	inodes  uint64
	chunks  bool // some file is chunk-based
	idents  []byte
}

// link is what is known of a node that is no directory.
type link struct {
	names uint32 // how many it has
	nid   uint64 // 0 until it is written
}

// dirPlace is a directory whose inode was reserved.
type dirPlace struct {
	node    *Node
	path    string
	nid     uint64
	parent  *dirPlace
	subdirs map[string]*dirPlace
	ino     uint32
	xattrs  []byte
	icount  uint16
	data    int64 // offset of its whole blocks
	size    int64
	inline  bool // the last block's part lies behind the inode
}

func (w *writer) run(t *Tree) (Info, error) {
	if t.Root == nil || !t.Root.IsDir() {
		return Info{}, fault.New(fault.Invalid, "root: not a directory")
	}
	if err := w.count(t.Root, "/"); err != nil {
		return Info{}, err
	}
	if _, err := w.dir(t.Root, "/", nil); err != nil {
		return Info{}, err
	}
	w.meta.flush(w.out)
	w.meta.trim(w.out)
	for _, d := range w.dirs {
		if err := w.fill(d); err != nil {
			return Info{}, err
		}
	}
	return w.finish()
}

// count finds how many names each file has.
func (w *writer) count(dir *Node, path string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	for name, c := range dir.children {
		if err := CheckName(name); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if c.IsDir() {
			if err := w.count(c, path+name+"/"); err != nil {
				return err
			}
			continue
		}
		l := w.links[c]
		if l == nil {
			l = &link{}
			w.links[c] = l
		}
		if l.names == math.MaxUint32 {
			return fault.New(fault.Invalid, "%s%s: too many hard links", path, name)
		}
		l.names++
	}
	return nil
}

// dir reserves a directory and writes everything below it.
func (w *writer) dir(n *Node, path string, parent *dirPlace) (*dirPlace, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	d := &dirPlace{node: n, path: path, parent: parent, ino: w.nextIno()}
	if parent == nil {
		d.parent = d
	}
	var err error
	if d.xattrs, d.icount, err = appendXattrs(n.Xattrs); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	names := entryNames(n)
	d.size = dirSize(names)
	head, tail := int64(inodeSize+len(d.xattrs)), d.size%BlockSize
	d.inline = tail > 0 && tail <= maxInlineTail && head+tail <= BlockSize
	whole := d.size
	if d.inline {
		whole -= tail
	} else {
		tail = 0
	}
	// The root is placed first, since the superblock has but 16 bits for its
	// number: it must lie in the first 2 MiB.
	d.nid = uint64(w.meta.place(w.out, head, tail) / slotSize)
	d.data = w.out.reserve(whole)
	w.dirs = append(w.dirs, d)
	for _, name := range names {
		c := n.children[name]
		if c == nil {
			continue // a dot
		}
		if c.IsDir() {
			sub, err := w.dir(c, path+name+"/", d)
			if err != nil {
				return nil, err
			}
			if d.subdirs == nil {
				d.subdirs = map[string]*dirPlace{}
			}
			d.subdirs[name] = sub
			continue
		}
		if err := w.file(c); err != nil {
			return nil, fmt.Errorf("%s%s: %w", path, name, err)
		}
	}
	return d, nil
}

func (w *writer) nextIno() uint32 {
	w.inodes++
	return uint32(w.inodes)
}

// file writes a file that is no directory, unless an earlier name of it was met.
func (w *writer) file(n *Node) error {
	l := w.links[n]
	if l.nid != 0 {
		return nil
	}
	xattrs, icount, err := appendXattrs(n.Xattrs)
	if err != nil {
		return err
	}
	head := inodeSize + int64(len(xattrs))
	i := w.inode(n, w.nextIno(), icount, l.names)
	var c content
	switch n.Kind() {
	case unix.S_IFREG:
		c, err = w.regular(n, BlockSize-head)
		i.size = uint64(n.Size)
	case unix.S_IFLNK:
		c, err = w.symlink(n, BlockSize-head)
		i.size = uint64(len(n.Target))
	case unix.S_IFCHR, unix.S_IFBLK:
		if n.Major >= 1<<12 || n.Minor >= 1<<20 {
			err = fault.New(fault.Invalid, "device %d:%d: Linux has 12 bits of major and 20 of minor number", n.Major, n.Minor)
		}
		c.union = deviceNumber(n.Major, n.Minor)
	case unix.S_IFIFO, unix.S_IFSOCK:
	default:
		err = fault.New(fault.Invalid, "mode %#o: no kind of file", n.Mode)
	}
	if err != nil {
		return err
	}
	i.layout, i.union = c.layout, c.union
	head += int64(len(c.chunks))
	at := w.meta.place(w.out, head, int64(len(c.tail)))
	l.nid = uint64(at / slotSize)
	rec := i.append(make([]byte, 0, head+int64(len(c.tail))))
	rec = append(rec, xattrs...)
	rec = append(rec, c.chunks...)
	rec = append(rec, c.tail...)
	w.meta.put(at, rec)
	w.identify(rec)
	return w.out.err
}

func (w *writer) inode(n *Node, ino uint32, icount uint16, nlink uint32) inode {
	return inode{
		icount: icount, mode: uint16(n.Mode), ino: ino, uid: n.UID, gid: n.GID,
		sec: n.Sec, nsec: n.Nsec, nlink: nlink,
	}
}

func (w *writer) regular(n *Node, inlineRoom int64) (content, error) {
	if n.Size < 0 || n.Size > MaxFileSize {
		return content{}, fault.New(fault.Invalid, "size of %d bytes: files of up to %d are possible", n.Size, int64(MaxFileSize))
	}
	if n.Size == 0 {
		return content{}, nil
	}
	r, err := n.Open()
	if err != nil {
		return content{}, err
	}
	c, err := w.content.copy(r, n.Size, inlineRoom, w.ctx.Err)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	if c.layout == layoutChunks {
		w.chunks = true
	}
	return c, err
}

// symlink keeps the target behind the inode, or in a block if it is too long.
func (w *writer) symlink(n *Node, inlineRoom int64) (content, error) {
	if n.Target == "" || len(n.Target) >= BlockSize {
		return content{}, fault.New(fault.Invalid, "symbolic link with a target of %d bytes: 1 to %d are possible", len(n.Target), BlockSize-1)
	}
	if int64(len(n.Target)) <= inlineRoom {
		return content{layout: layoutInline, tail: []byte(n.Target)}, nil
	}
	at := w.out.reserve(int64(len(n.Target)))
	w.out.write(at, []byte(n.Target))
	return content{layout: layoutPlain, union: uint32(at / BlockSize)}, nil
}

// fill writes a directory's inode and entries.
func (w *writer) fill(d *dirPlace) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	entries := make([]dirent, 0, len(d.node.children)+2)
	for _, name := range entryNames(d.node) {
		e := dirent{name: name, kind: 2}
		switch c := d.node.children[name]; {
		case name == ".":
			e.nid = d.nid
		case name == "..":
			e.nid = d.parent.nid
		case c.IsDir():
			e.nid = d.subdirs[name].nid
		default:
			e.nid, e.kind = w.links[c].nid, fileType(c.Mode)
		}
		entries = append(entries, e)
	}
	data := appendDir(make([]byte, 0, d.size), entries)
	i := w.inode(d.node, d.ino, d.icount, 2+uint32(len(d.subdirs)))
	i.size = uint64(d.size)
	i.layout = layoutPlain
	whole := data
	if d.inline {
		i.layout = layoutInline
		whole = data[:d.size-d.size%BlockSize]
	}
	if len(whole) > 0 {
		i.union = uint32(d.data / BlockSize)
		w.out.write(d.data, whole)
	}
	rec := append(i.append(nil), d.xattrs...)
	rec = append(rec, data[len(whole):]...)
	w.out.write(int64(d.nid)*slotSize, rec)
	w.identify(rec)
	w.identify(whole)
	return w.out.err
}

// identify mixes bytes of the image into its UUID.
func (w *writer) identify(b []byte) {
	sum := sha256.Sum256(append(w.idents, b...))
	w.idents = sum[:]
}

// finish writes the superblock, last, so that a torn image has none.
func (w *writer) finish() (Info, error) {
	w.out.flush()
	if w.out.err != nil {
		return Info{}, w.out.err
	}
	info := Info{Size: w.out.next, Inodes: w.inodes}
	if err := w.out.sink.Truncate(info.Size); err != nil {
		return Info{}, err
	}
	w.identify(binary.LittleEndian.AppendUint32(nil, w.content.sum))
	copy(info.UUID[:], w.idents)
	info.UUID[6] = info.UUID[6]&0x0f | 0x80 // RFC 9562, version 8: custom
	info.UUID[8] = info.UUID[8]&0x3f | 0x80
	block := make([]byte, BlockSize)
	if _, err := w.out.sink.ReadAt(block, 0); err != nil && err != io.EOF {
		return Info{}, err
	}
	s := superblock{root: uint16(w.dirs[0].nid), chunks: w.chunks, inodes: w.inodes, blocks: uint32(info.Size / BlockSize), uuid: info.UUID}
	s.put(block)
	_, err := w.out.sink.WriteAt(block, 0)
	return info, err
}
