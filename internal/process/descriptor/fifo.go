package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// fifo are named pipes.
type fifo struct{ simple }

func (fifo) name() image.FileKind { return image.FIFO }

func (fifo) claims(c *Capturer, d *description) bool {
	return d.format() == unix.S_IFIFO && c.stored(d)
}

func (fifo) examine(c *Capturer, d *description) (err error) {
	d.file.Object = c.object(d)
	d.file.Path, d.file.Deleted, err = c.locate(d)
	if err != nil {
		return err
	}
	d.file.UID, d.file.GID = d.stat.Uid, d.stat.Gid
	return c.examinePipe(d)
}

func (fifo) read(c *Capturer, d *description) error { return c.readPipe(d, -1) }

func (fifo) open(o *Opened, f *image.File) (int, error) {
	at, err := o.shared(f, o.openFIFO)
	if err != nil {
		return -1, err
	}
	return reopen(at, f.Flags)
}

// openFIFO opens a FIFO for both reading and writing, which waits for nobody,
// and fills it.
func (o *Opened) openFIFO(f *image.File) (int, error) {
	find := o.find
	if f.Deleted {
		find = o.recreateFIFO
	}
	at, err := find(f)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	fd, err := reopen(at, unix.O_RDWR)
	if err != nil {
		return -1, err
	}
	if err := fillPipe(fd, f); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (o *Opened) recreateFIFO(f *image.File) (fd int, err error) {
	dir, _, err := o.parent(f.Path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	err = asOwner(f.UID, f.GID, func() error {
		return o.unnamed(dir, func(name string) error {
			if err := unix.Mknodat(dir, name, unix.S_IFIFO|f.Mode&0o7777, 0); err != nil {
				return err
			}
			fd, err = unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			return err
		})
	})
	if err != nil {
		return -1, fmt.Errorf("make a FIFO without a name: %w", err)
	}
	return fd, nil
}
