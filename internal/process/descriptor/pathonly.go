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
	if deleted {
		return c.refuse(d, fmt.Sprintf("the place of a file that is gone (O_PATH, %s)", name), "close it")
	}
	d.file.Path = name
	return nil
}

func (pathOnly) open(o *Opened, f *image.File) (int, error) {
	return openIn(o.target.Root, f.Path, f.Flags&(unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW))
}
