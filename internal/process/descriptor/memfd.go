package descriptor

import (
	"fmt"
	"math"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// memfd are files in memory alone (memfd_create(2)), with their content and
// seals. Mappings of them are made by their owners, of the same file.
type memfd struct{ simple }

func (memfd) name() image.FileKind { return image.Memfd }

func (memfd) claims(c *Capturer, d *description) bool {
	if d.format() != unix.S_IFREG || d.stat.Nlink != 0 || d.flags&unix.O_PATH != 0 || c.system(d) != unix.TMPFS_MAGIC {
		return false
	}
	link, err := c.linkOf(d)
	return err == nil && strings.HasPrefix(link, memfdPrefix)
}

func (memfd) examine(c *Capturer, d *description) error {
	link, err := c.linkOf(d)
	if err != nil {
		return err
	}
	d.file.Path = strings.TrimSuffix(strings.TrimPrefix(link, memfdPrefix), deletedSuffix)
	d.file.Object = c.object(d)
	if err := keepOwner(d); err != nil {
		return err
	}
	if d.file.Seals, err = unix.FcntlInt(uintptr(d.fd), unix.F_GET_SEALS, 0); err != nil {
		return fmt.Errorf("seals of a memfd: %w", err)
	}
	return c.refuseLeased(d, "the memfd "+d.file.Path)
}

// read saves the content. Like other shared memory it is not bounded by
// [Env.MaxContent].
func (memfd) read(c *Capturer, d *description) error {
	if !c.isFirst(d) {
		return nil
	}
	return c.saveContent(d, math.MaxInt64)
}

func (memfd) open(o *Opened, f *image.File) (int, error) {
	at, err := o.shared(f, recreateMemfd)
	if err != nil {
		return -1, err
	}
	return openAt(at, f)
}

func recreateMemfd(f *image.File) (int, error) {
	if f.Blob == nil {
		return -1, errNoContent(f)
	}
	fd, err := unix.MemfdCreate(f.Path, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err := fill(fd, f); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// seal gives a memfd its seals.
func (o *Opened) seal(i int) error {
	// A description of our own that can write: the captured ones may not.
	fd, err := unix.Open(procFD(o.fd[i]), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a memfd to seal it: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, o.files[i].Seals); err != nil {
		return fmt.Errorf("seal memfd %s (%#x): %w", o.files[i].Path, o.files[i].Seals, err)
	}
	return nil
}
