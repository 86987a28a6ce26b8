package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// pathOnly are descriptors that were opened with O_PATH: a place in the file
// system and nothing more.
type pathOnly struct{ simple }

func (pathOnly) name() image.FileKind { return image.PathOnly }

func (pathOnly) claims(c *Capturer, d *description) bool {
	if d.flags&unix.O_PATH == 0 {
		return false
	}
	link, err := c.linkOf(d)
	return err == nil && link[0] == '/'
}

func (pathOnly) examine(c *Capturer, d *description) error {
	name, deleted, err := c.locate(d)
	if err != nil {
		return err
	}
	switch {
	case d.format() == unix.S_IFREG && c.system(d) == mqueueMagic: // queues are made after places
		return c.refuse(d, fmt.Sprintf("the place of a message queue (O_PATH, %s)", name), "close it")
	case d.format() == unix.S_IFSOCK && c.isBound(d):
		return c.refuse(d, fmt.Sprintf("the place of a socket that is bound (O_PATH, %s)", name), "close it")
	case !deleted:
		d.file.Path = name
		return nil
	case d.format() == unix.S_IFREG: // it can be opened by /proc/self/fd
		return regular{}.examine(c, d)
	case d.format() == unix.S_IFDIR:
		return directory{}.examine(c, d)
	}
	return c.refuse(d, fmt.Sprintf("the place of a file that is gone (O_PATH, %s)", name), "close it")
}

// isBound reports whether a socket is bound to a file, which gets another one when it is made anew.
func (c *Capturer) isBound(d *description) bool {
	for i := range c.descriptions {
		s := &c.descriptions[i]
		if s.format() != unix.S_IFSOCK || s.flags&unix.O_PATH != 0 {
			continue
		}
		fd, err := unix.IoctlRetInt(s.fd, sioUnixFile)
		if err != nil { // it has none
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd)
		if err == nil && st.Dev == d.stat.Dev && st.Ino == d.stat.Ino {
			return true
		}
	}
	return false
}

func (pathOnly) read(c *Capturer, d *description) error {
	if d.format() != unix.S_IFREG {
		return nil
	}
	return regular{}.read(c, d)
}

func (pathOnly) open(o *Opened, f *image.File) (int, error) {
	if f.Deleted {
		recreate := o.recreateFile
		if f.Mode&unix.S_IFMT == unix.S_IFDIR {
			recreate = o.recreateDirectory
		}
		at, err := o.shared(f, recreate)
		if err != nil {
			return -1, err
		}
		return unix.Open(procFD(at), f.Flags&(unix.O_PATH|unix.O_DIRECTORY)|unix.O_CLOEXEC, 0)
	}
	return openIn(o.target.Root, f.Path, f.Flags&(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW))
}
