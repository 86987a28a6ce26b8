package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// procFile are files and directories of /proc, /sys and the cgroup file
// systems. The kernel checks the rights of whoever opened such a file when it
// is read, so they are opened by a process of the sandbox and never with ours.
type procFile struct{ simple }

func (procFile) name() image.FileKind { return image.ProcFile }

func (procFile) claims(c *Capturer, d *description) bool {
	f := d.format()
	return (f == unix.S_IFREG || f == unix.S_IFDIR || f == unix.S_IFLNK) && kernelFiles(c.system(d))
}

func (procFile) examine(c *Capturer, d *description) error {
	name, deleted, err := c.locate(d)
	if err != nil {
		return err
	}
	if deleted {
		return c.refuse(d, fmt.Sprintf("%s, whose process or object has gone,", name), "close it")
	}
	d.file.Path = name
	return nil
}

func (procFile) late() bool { return true }

func (procFile) open(*Opened, *image.File) (int, error) { return -1, errLate }
