package overlay

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// A file handle of overlayfs is one of the file system that holds the file,
// with a head (struct ovl_fh of fs/overlayfs/overlayfs.h): three bytes of
// padding, then version, magic, length, flags, type, and 16 bytes of the file
// system's id.
const (
	handleType    = 0xf8 // OVL_FILEID_V1
	handleVersion = 3
	handleMagic   = 4
	handleFlags   = 6
	handleInner   = 7
	handleHead    = 24

	magic     = 0xfb
	flagUpper = 1 << 2
)

// PathOf implements [rootfs.Store].
func (s *Store) PathOf(upper string, typ int32, handle []byte) (string, error) {
	p, err := s.pathOf(upper, typ, handle)
	if err != nil {
		return "", rootfs.Errorf("path of a file handle in %s: %w", upper, err)
	}
	return p, nil
}

func (s *Store) pathOf(upper string, typ int32, handle []byte) (string, error) {
	if err := rootfs.ValidID(upper); err != nil {
		return "", err
	}
	if typ != handleType || len(handle) <= handleHead || handle[handleVersion] != 0 || handle[handleMagic] != magic {
		return "", fault.New(fault.Invalid, "not a file handle of overlayfs (type %#x, %d bytes)", typ, len(handle))
	}
	inner := unix.NewFileHandle(int32(handle[handleInner]), handle[handleHead:])
	if handle[handleFlags]&flagUpper != 0 {
		p, err := pathBelow(s.mapped, inner)
		if err != nil {
			return "", err
		}
		p, ok := strings.CutPrefix(p, "/"+upper+"/"+upperDir)
		if !ok || p != "" && p[0] != '/' {
			return "", fault.New(fault.NotFound, "the file is in another upper")
		}
		return absolute(p), nil
	}
	// A layer's number may be another file's in another layer: the caller looks
	// whether the path shows what it should. Of one layer there is no doubt.
	var err error
	for _, l := range s.layers {
		var p string
		if p, err = pathBelow(l.mapped, inner); err == nil {
			return absolute(p), nil
		}
	}
	return "", err
}

func absolute(p string) string {
	if p == "" {
		return "/"
	}
	return p
}

// pathBelow is the path, from the root of a mount, of the file that a handle
// stands for.
func pathBelow(mount int, h unix.FileHandle) (string, error) {
	// Not a descriptor that only names a place, as those of mounts are.
	dir, err := unix.Openat(mount, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open a mount's root: %w", err)
	}
	defer unix.Close(dir)
	fd, err := unix.OpenByHandleAt(dir, h, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err == unix.ESTALE {
		return "", fault.New(fault.NotFound, "no such file")
	}
	if err != nil {
		return "", fmt.Errorf("open_by_handle_at: %w", err)
	}
	defer unix.Close(fd)
	root, err := nameOf(dir)
	if err != nil {
		return "", err
	}
	p, err := nameOf(fd)
	if err != nil {
		return "", err
	}
	// A mount has a place of its own on kernels that want that, see place.
	p, ok := strings.CutPrefix(p, strings.TrimSuffix(root, "/"))
	if !ok || strings.HasSuffix(p, " (deleted)") && !isAt(dir, p, fd) {
		return "", fault.New(fault.NotFound, "the file has no name")
	}
	return p, nil
}

// isAt reports whether a path below a directory is that of an open file: a name may really end
// as the kernel marks those of deleted files.
func isAt(dir int, p string, fd int) bool {
	var there, file unix.Stat_t
	return unix.Fstatat(dir, strings.TrimLeft(p, "/"), &there, unix.AT_SYMLINK_NOFOLLOW) == nil && unix.Fstat(fd, &file) == nil &&
		there.Dev == file.Dev && there.Ino == file.Ino
}

// nameOf is the name of a descriptor's file, as this process sees it.
func nameOf(fd int) (string, error) {
	var b [unix.PathMax]byte
	n, err := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), b[:])
	if err != nil {
		return "", fmt.Errorf("name of a file: %w", err)
	}
	return string(b[:n]), nil
}
