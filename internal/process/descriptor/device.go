package descriptor

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// device are the nodes of /dev that hold no state.
type device struct{ simple }

// stateless are the minor numbers of those, of major number 1: null, zero,
// full, random, urandom (devices.txt).
var stateless = [...]uint32{3, 5, 7, 8, 9}

func (device) name() image.FileKind { return image.Device }

func (device) claims(_ *Capturer, d *description) bool {
	if d.format() != unix.S_IFCHR || unix.Major(d.stat.Rdev) != 1 {
		return false
	}
	for _, m := range stateless {
		if unix.Minor(d.stat.Rdev) == m {
			return true
		}
	}
	return false
}

func (device) examine(c *Capturer, d *description) error {
	link, err := c.linkOf(d)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(c.env.Root, inRoot(link), &st, 0); err != nil || st.Rdev != d.stat.Rdev {
		return c.refuse(d, "the device "+link+", whose node is gone", "close it or make the node again")
	}
	d.file.Path = link
	return nil
}

func (device) open(o *Opened, f *image.File) (int, error) { return o.openPath(f) }
