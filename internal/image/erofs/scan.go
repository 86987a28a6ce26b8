package erofs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

// Directory is a tree made from a directory of the host. Contents are read
// from it when the tree is written, so it stays open until then.
type Directory struct {
	Tree
	root *os.File
}

// Scan makes a tree of a directory with all attributes. Symbolic links are kept
// and never followed, the last part of path excepted. Other mounts below it are
// left out: their mount points are empty directories. Names that are hard
// links stay so. Reading trusted.* xattrs needs CAP_SYS_ADMIN.
//
// The caller closes the Directory when the tree is no longer needed. A
// directory that changes meanwhile gives an error of kind Conflict, or a tree
// of files before and after the change.
func Scan(ctx context.Context, path string) (*Directory, error) {
	root, err := os.OpenFile(path, unix.O_DIRECTORY|os.O_RDONLY, 0)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fault.New(fault.NotFound, "%w", err)
		}
		return nil, cause.System(err)
	}
	d := &Directory{root: root}
	s := scanner{ctx: ctx, root: root, links: map[fileID]*Node{}}
	if d.Root, err = s.scan(); err != nil {
		root.Close()
		return nil, fmt.Errorf("read directory %s: %w", path, cause.System(err))
	}
	return d, nil
}

// Close ends access to the contents.
func (d *Directory) Close() error { return d.root.Close() }

type fileID struct {
	major, minor uint32
	ino          uint64
}

type scanner struct {
	ctx   context.Context
	root  *os.File
	mount uint64
	links map[fileID]*Node
}

const statxMask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID

func (s *scanner) scan() (*Node, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(s.root.Fd()), "", unix.AT_EMPTY_PATH, statxMask, &st); err != nil {
		return nil, os.NewSyscallError("statx", err)
	}
	s.mount = st.Mnt_id
	n := nodeOf(&st)
	var err error
	if n.Xattrs, err = readXattrs(fdPath(s.root) + "/."); err != nil {
		return nil, err
	}
	return n, s.entries(n, ".")
}

func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// openBelow opens a path below the root and follows no symbolic link on the way.
func openBelow(root *os.File, path string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(int(root.Fd()), path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			return nil, fault.New(fault.Conflict, "%s: %w: it was changed while it was read", path, err)
		default:
			return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
		}
	}
}

// entries reads a directory's entries into n.
func (s *scanner) entries(n *Node, path string) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	dir, err := openBelow(s.root, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		dir.Close()
		return err
	}
	slices.Sort(names)
	var subdirs []string
	for _, name := range names {
		c, descend, err := s.entry(dir, path, name)
		if err != nil {
			dir.Close()
			return fmt.Errorf("%s/%s: %w", path, name, err)
		}
		n.Add(name, c)
		if descend {
			subdirs = append(subdirs, name)
		}
	}
	// Closed before descending, so that depth costs no descriptors.
	if err := dir.Close(); err != nil {
		return err
	}
	for _, name := range subdirs {
		if err := s.entries(n.children[name], path+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

// entry makes the node of one name. descend reports that it is a directory of
// the same mount.
func (s *scanner) entry(dir *os.File, path, name string) (n *Node, descend bool, err error) {
	var st unix.Statx_t
	if err := unix.Statx(int(dir.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, statxMask, &st); err != nil {
		return nil, false, os.NewSyscallError("statx", err)
	}
	id := fileID{st.Dev_major, st.Dev_minor, st.Ino}
	n = nodeOf(&st)
	if !n.IsDir() && st.Nlink > 1 {
		if first := s.links[id]; first != nil {
			return first, false, nil
		}
		s.links[id] = n
	}
	if n.Xattrs, err = readXattrs(fdPath(dir) + "/" + name); err != nil {
		return nil, false, err
	}
	switch n.Kind() {
	case unix.S_IFDIR:
		return n, st.Mnt_id == s.mount, nil
	case unix.S_IFLNK:
		n.Target, err = readlink(dir, name)
		return n, false, err
	case unix.S_IFREG:
		root, rel, size := s.root, path+"/"+name, n.Size
		n.Open = func() (io.ReadCloser, error) { return openSame(root, rel, id, size) }
	}
	return n, false, nil
}

// openSame opens a file that was met before and checks that it is that file.
func openSame(root *os.File, path string, id fileID, size int64) (io.ReadCloser, error) {
	f, err := openBelow(root, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	var st unix.Statx_t
	err = unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, statxMask, &st)
	if err == nil && (id != fileID{st.Dev_major, st.Dev_minor, st.Ino} || int64(st.Size) != size) {
		err = fault.New(fault.Conflict, "it was changed while it was read")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &hostFile{f: f}, nil
}

// hostFile is a regular file that is read from the start and knows its holes.
type hostFile struct {
	f    *os.File
	off  int64
	data int64 // between off and this lies no data
}

func (h *hostFile) Read(p []byte) (int, error) {
	n, err := h.f.ReadAt(p, h.off)
	h.off += int64(n)
	return n, err
}

func (h *hostFile) Close() error { return h.f.Close() }

// skipHole implements holed with SEEK_DATA of lseek(2). A file system that has
// no holes says that everything is data.
func (h *hostFile) skipHole(off, n int64) bool {
	if off >= h.data {
		data, err := unix.Seek(int(h.f.Fd()), off, unix.SEEK_DATA)
		switch {
		case err == nil:
			h.data = data
		case errors.Is(err, unix.ENXIO): // a hole up to the end
			h.data = math.MaxInt64
		default:
			h.data = off
		}
	}
	if off+n > h.data {
		return false
	}
	h.off = off + n
	return true
}

func nodeOf(st *unix.Statx_t) *Node {
	n := &Node{
		Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid,
		Sec: st.Mtime.Sec, Nsec: st.Mtime.Nsec,
	}
	switch n.Kind() {
	case unix.S_IFREG:
		n.Size = int64(st.Size)
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Major, n.Minor = st.Rdev_major, st.Rdev_minor
	}
	return n
}

func readlink(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", os.NewSyscallError("readlinkat", err)
	}
	return string(buf[:n]), nil
}

// readXattrs reads the xattrs that an image can hold. A file system without
// xattrs has none.
func readXattrs(path string) (map[string]string, error) {
	list, err := growing(func(b []byte) (int, error) { return unix.Llistxattr(path, b) })
	if errors.Is(err, unix.EOPNOTSUPP) || (err == nil && len(list) == 0) {
		return nil, nil
	}
	if err != nil {
		return nil, os.NewSyscallError("llistxattr", err)
	}
	var attrs map[string]string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if !KeepsXattr(name) {
			continue
		}
		value, err := growing(func(b []byte) (int, error) { return unix.Lgetxattr(path, name, b) })
		if errors.Is(err, unix.ENODATA) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("lgetxattr %s: %w", name, err)
		}
		if attrs == nil {
			attrs = map[string]string{}
		}
		attrs[name] = string(value)
	}
	return attrs, nil
}

// growing calls a function that fills a buffer, with larger ones while it says
// ERANGE.
func growing(call func([]byte) (int, error)) ([]byte, error) {
	for size := 256; ; size *= 4 {
		buf := make([]byte, size)
		n, err := call(buf)
		if err == nil {
			return buf[:n], nil
		}
		if !errors.Is(err, unix.ERANGE) || size > 1<<20 {
			return nil, err
		}
	}
}
