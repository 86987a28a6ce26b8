package descriptor

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// eventfd are counters (eventfd(2)).
type eventfd struct{ simple }

func (eventfd) name() image.FileKind { return image.Eventfd }

func (eventfd) claims(c *Capturer, d *description) bool { return c.isAnonymous(d, "[eventfd]") }

// isAnonymous reports whether a description is of an anonymous inode with a
// name.
func (c *Capturer) isAnonymous(d *description, name string) bool {
	if d.format() != 0 {
		return false
	}
	link, err := c.linkOf(d)
	return err == nil && link == "anon_inode:"+name
}

func (eventfd) examine(c *Capturer, d *description) error {
	text, err := c.info(d)
	if err != nil {
		return err
	}
	count, _ := field(text, "eventfd-count")
	d.file.Count, err = strconv.ParseUint(count, 16, 64)
	if err != nil {
		return fmt.Errorf("count %q of an eventfd: %w", count, err)
	}
	semaphore, _ := field(text, "eventfd-semaphore") // Linux 6.5
	d.file.Semaphore = semaphore == "1"
	return nil
}

func (eventfd) open(_ *Opened, f *image.File) (int, error) {
	flags := unix.EFD_CLOEXEC | unix.EFD_NONBLOCK
	if f.Semaphore {
		flags |= unix.EFD_SEMAPHORE
	}
	fd, err := unix.Eventfd(0, flags)
	if err != nil {
		return -1, fmt.Errorf("eventfd2: %w", err)
	}
	if f.Count > 0 {
		if _, err := unix.Write(fd, binary.LittleEndian.AppendUint64(nil, f.Count)); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("set an eventfd to %d: %w", f.Count, err)
		}
	}
	return fd, setFlags(fd, f.Flags)
}
