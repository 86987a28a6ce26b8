package descriptor

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// signalfd are sets of signals to be read (signalfd(2)). The signals themselves
// are pending for whoever reads, and no state of the description.
type signalfd struct{ simple }

func (signalfd) name() image.FileKind { return image.Signalfd }

func (signalfd) claims(c *Capturer, d *description) bool { return c.isAnonymous(d, "[signalfd]") }

func (signalfd) examine(c *Capturer, d *description) error {
	text, err := c.info(d)
	if err != nil {
		return err
	}
	mask, _ := field(text, "sigmask")
	if d.file.Sigmask, err = strconv.ParseUint(mask, 16, 64); err != nil {
		return fmt.Errorf("mask %q of a signalfd: %w", mask, err)
	}
	return nil
}

func (signalfd) open(_ *Opened, f *image.File) (int, error) {
	var set unix.Sigset_t
	set.Val[0] = f.Sigmask
	fd, err := unix.Signalfd(-1, &set, unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("signalfd: %w", err)
	}
	return fd, setFlags(fd, f.Flags)
}
