package descriptor

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// deletedSuffix is what the kernel puts behind the name of an unlinked file.
const deletedSuffix = " (deleted)"

// inRoot makes a path relative to a descriptor of the root.
func inRoot(p string) string {
	if p = strings.TrimLeft(p, "/"); p != "" {
		return p
	}
	return "."
}

// locate finds the path inside that a description's inode has now. deleted is
// set if it has none; the path is then the last it had.
//
// A link count says nothing: on overlay, an unlinked file of a lower layer
// keeps it. A file is deleted if another inode is at its path, or none.
func (c *Capturer) locate(d *description) (name string, deleted bool, err error) {
	link, err := c.linkOf(d)
	if err != nil {
		return "", false, err
	}
	if c.isAt(d, link) {
		return link, false, nil
	}
	name, cut := strings.CutSuffix(link, deletedSuffix)
	if cut && c.isAt(d, name) {
		return name, false, nil
	}
	if d.stat.Nlink > 0 {
		other := c.otherName(d, path.Dir(name))
		if other == "" {
			other = c.nameByHandle(d)
		}
		if other != "" {
			return other, false, nil
		}
	}
	return name, true, nil
}

// isAt reports whether the inode of d is at a path. Components of a path that
// the kernel gave are no symlinks. Processes of one program have the same files open, so
// what is at a path is asked once in a capture.
func (c *Capturer) isAt(d *description, name string) bool {
	there, known := c.places[name]
	if !known {
		var st unix.Stat_t
		if unix.Fstatat(c.env.Root, inRoot(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			there = inode{st.Dev, st.Ino}
		}
		c.places[name] = there
	}
	return there == inode{d.stat.Dev, d.stat.Ino} // of which none is zero
}

// nameByHandle asks the file system for another name of the inode, wherever that is.
// Kernels before 6.6 do not tell the handle of an overlay's file.
func (c *Capturer) nameByHandle(d *description) string {
	const handleOnly = 0x200 // AT_HANDLE_FID: it need not be one that the file system opens
	if c.env.PathOf == nil {
		return ""
	}
	h, _, err := unix.NameToHandleAt(d.fd, "", unix.AT_EMPTY_PATH|handleOnly)
	if err != nil {
		return ""
	}
	p, err := c.env.PathOf(h.Type(), h.Bytes())
	if err != nil || !c.isAt(d, p) {
		return ""
	}
	return p
}

// otherName looks for another name of the inode in a directory: programs write
// under a temporary name, link the file to its final one and unlink the first.
func (c *Capturer) otherName(d *description, dir string) (found string) {
	if d.format() == unix.S_IFDIR {
		return ""
	}
	fd, err := openIn(c.env.Root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	_ = entries(fd, func(ino uint64, name []byte) bool {
		if ino == d.stat.Ino {
			if p := path.Join(dir, string(name)); c.isAt(d, p) {
				found = p
			}
		}
		return found == ""
	})
	return found
}

// NameOf finds a name that an open file has inside, where the one that it had last is gone: programs
// make a file under a temporary name, and link it to its final one. It is empty
// if there is none. Named is false if the file has none at all, as far as its link count tells.
func NameOf(env Env, fd int, last string) (name string, named bool, err error) {
	c, d := &Capturer{env: env, places: map[string]inode{}}, &description{fd: fd}
	if err := unix.Fstat(fd, &d.stat); err != nil {
		return "", false, err
	}
	if d.stat.Nlink == 0 {
		return "", false, nil
	}
	if c.isAt(d, last) {
		return last, true, nil
	}
	if name = c.otherName(d, path.Dir(last)); name == "" {
		name = c.nameByHandle(d)
	}
	return name, true, nil
}
