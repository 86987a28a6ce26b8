package descriptor

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// regular are regular files, with a name or without.
type regular struct{ simple }

func (regular) name() image.FileKind { return image.Regular }

func (regular) claims(c *Capturer, d *description) bool {
	return d.format() == unix.S_IFREG && c.stored(d)
}

func (regular) examine(c *Capturer, d *description) error {
	name, deleted, err := c.locate(d)
	if err != nil {
		return err
	}
	d.file.Path, d.file.Deleted = name, deleted
	if deleted {
		return c.examineDeleted(d)
	}
	if strings.HasPrefix(name, "/dev/") { // memory, which no snapshot has
		return c.refuseLeased(d, "the file "+name)
	}
	return nil
}

func (regular) read(c *Capturer, d *description) error {
	if !d.file.Deleted || !c.isFirst(d) {
		return nil
	}
	return c.saveContent(d, c.env.MaxContent)
}

func (regular) open(o *Opened, f *image.File) (int, error) {
	if !f.Deleted {
		return o.openPath(f)
	}
	at, err := o.shared(f, o.recreateFile)
	if err != nil {
		return -1, err
	}
	return openAt(at, f)
}
