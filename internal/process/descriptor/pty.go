package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Device numbers of terminals (devices.txt).
const (
	ttyMajor        = 5
	ttyMinor        = 0 // /dev/tty
	ptmxMinor       = 2
	firstSlaveMajor = 136
	lastSlaveMajor  = 143
)

// ptySlave are openings of /dev/pts/N.
type ptySlave struct{ simple }

func (ptySlave) name() image.FileKind { return image.PTYSlave }

func (ptySlave) claims(_ *Capturer, d *description) bool {
	m := unix.Major(d.stat.Rdev)
	return d.format() == unix.S_IFCHR && m >= firstSlaveMajor && m <= lastSlaveMajor
}

// slaveNumber is the N of a slave's device number.
func slaveNumber(rdev uint64) int {
	return int(unix.Major(rdev)-firstSlaveMajor)<<20 | int(unix.Minor(rdev))
}

func (ptySlave) examine(c *Capturer, d *description) error {
	link, err := c.linkOf(d)
	if err != nil {
		return err
	}
	d.file.Path = link
	n := slaveNumber(d.stat.Rdev)
	t := c.terminal(n)
	d.file.Terminal = t
	c.terminals[t].slaves = append(c.terminals[t].slaves, d.index)
	i := c.terminals[t].image
	i.Mode, i.UID, i.GID = d.stat.Mode, d.stat.Uid, d.stat.Gid
	return nil
}

func (ptySlave) open(o *Opened, f *image.File) (int, error) {
	t := o.terminals[f.Terminal]
	if t.slave < 0 {
		return -1, fault.New(fault.Internal, "terminal %d has no slave to open", t.image.Number)
	}
	return reopen(t.slave, f.Flags)
}

// ptyMaster are masters that a process inside has, such as tmux or script.
type ptyMaster struct{ simple }

func (ptyMaster) name() image.FileKind { return image.PTYMaster }

func (ptyMaster) claims(_ *Capturer, d *description) bool {
	return d.format() == unix.S_IFCHR && d.stat.Rdev == unix.Mkdev(ttyMajor, ptmxMinor)
}

func (ptyMaster) examine(c *Capturer, d *description) error {
	// There is one opening of a master, so what is unread goes through it, in both directions.
	if d.flags&(unix.O_ACCMODE|unix.O_PATH) != unix.O_RDWR {
		return c.refuse(d, "a terminal's master that is open for reading or for writing alone", "open it for both (O_RDWR)")
	}
	n, err := unix.IoctlGetInt(d.fd, unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("number of a terminal: %w", err)
	}
	link, err := c.linkOf(d)
	if err != nil {
		return err
	}
	d.file.Path = link
	t := c.terminal(n)
	d.file.Terminal = t
	if c.terminals[t].master < 0 {
		c.terminals[t].master = d.fd
	}
	return nil
}

// open gives the one opening that the terminal was made with; a master cannot
// be opened twice.
func (ptyMaster) open(o *Opened, f *image.File) (int, error) {
	t := o.terminals[f.Terminal]
	fd, err := unix.FcntlInt(uintptr(t.master), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate a terminal's master: %w", err)
	}
	return fd, setFlags(fd, f.Flags)
}

// ctlTTY are openings of /dev/tty: another name for a process's controlling
// terminal, so a process that has it opens it.
type ctlTTY struct{ simple }

func (ctlTTY) name() image.FileKind { return image.CtlTTY }

func (ctlTTY) claims(_ *Capturer, d *description) bool {
	return d.format() == unix.S_IFCHR && d.stat.Rdev == unix.Mkdev(ttyMajor, ttyMinor)
}

func (ctlTTY) examine(c *Capturer, d *description) error {
	dev, err := unix.IoctlGetUint32(d.fd, unix.TIOCGDEV)
	if err == unix.EIO {
		return c.refuse(d, "/dev/tty of a terminal that is gone", "close it")
	}
	if err != nil {
		return fmt.Errorf("device of /dev/tty: %w", err)
	}
	// new_encode_dev of linux/kdev_t.h is what the high bits of dev_t omit.
	rdev := unix.Mkdev(dev>>8&0xfff, dev&0xff|dev>>12&0xfff00)
	if m := unix.Major(rdev); m < firstSlaveMajor || m > lastSlaveMajor {
		return c.refuse(d, "/dev/tty of a terminal of the host", "close it")
	}
	d.file.Path = "/dev/tty"
	d.file.Terminal = c.terminal(slaveNumber(rdev))
	t := &c.terminals[d.file.Terminal]
	t.slaves = append(t.slaves, d.index)
	return nil
}

func (ctlTTY) late() bool { return true }

func (ctlTTY) open(*Opened, *image.File) (int, error) { return -1, errLate }
