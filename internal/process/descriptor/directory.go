package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// directory are directories with their position, which the file system gives
// a meaning. A removed one comes back empty and removed.
type directory struct{ simple }

func (directory) name() image.FileKind { return image.Directory }

func (directory) claims(c *Capturer, d *description) bool {
	return d.format() == unix.S_IFDIR && (c.stored(d) || c.system(d) == mqueueMagic)
}

func (directory) examine(c *Capturer, d *description) (err error) {
	d.file.Path, d.file.Deleted, err = c.locate(d)
	if err == nil && d.file.Deleted {
		d.file.Object = c.object(d)
		err = keepOwner(d)
	}
	return err
}

func (directory) open(o *Opened, f *image.File) (int, error) {
	if !f.Deleted {
		return o.openPath(f)
	}
	at, err := o.shared(f, o.recreateDirectory)
	if err != nil {
		return -1, err
	}
	fd, err := reopen(at, f.Flags)
	if err == nil && f.Pos != 0 && f.Flags&unix.O_PATH == 0 {
		if _, err = unix.Seek(fd, f.Pos, unix.SEEK_SET); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("seek in a directory without a name: %w", err)
		}
	}
	return fd, err
}

func (o *Opened) recreateDirectory(f *image.File) (fd int, err error) {
	dir, _, err := o.parent(f.Path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	err = asOwner(f.UID, f.GID, func() error {
		return o.unnamed(dir, func(name string) error {
			if err := unix.Mkdirat(dir, name, f.Mode&0o7777); err != nil {
				return err
			}
			fd, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			return err
		})
	})
	if err != nil {
		return -1, fmt.Errorf("make a directory without a name: %w", err)
	}
	if err = unix.Fchmod(fd, f.Mode&0o7777); err == nil { // mkdir(2) takes no set-group-ID bit
		err = finish(fd, f)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make a directory without a name as it was: %w", err)
	}
	return fd, nil
}
