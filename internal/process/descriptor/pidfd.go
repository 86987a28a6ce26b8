package descriptor

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// pidfd are references to processes (pidfd_open(2)), those that have ended among
// them. They are opened when all processes exist.
type pidfd struct{ simple }

// pidfdThread is PIDFD_THREAD, which shows among the flags (Linux 6.9).
const pidfdThread = unix.O_EXCL

func (pidfd) name() image.FileKind { return image.PIDFD }

func (pidfd) late() bool { return true }

func (pidfd) claims(c *Capturer, d *description) bool {
	switch c.system(d) {
	case unix.PID_FS_MAGIC, unix.ANON_INODE_FS_MAGIC: // the latter before Linux 6.9
	default:
		return false
	}
	link, err := c.linkOf(d)
	return err == nil && link == "anon_inode:[pidfd]"
}

func (pidfd) examine(c *Capturer, d *description) error {
	text, err := c.info(d)
	if err != nil {
		return err
	}
	if d.file.PID, err = parsePIDFD(text); err != nil {
		return err
	}
	switch {
	case d.file.PID < 0:
		return c.refuse(d, "a pidfd of a process outside of the sandbox", "close it")
	case d.flags&pidfdThread != 0 && d.file.PID != 0 && !c.leads(d.file.PID):
		return c.refuse(d, fmt.Sprintf("a pidfd of thread %d alone (PIDFD_THREAD)", d.file.PID), "close it")
	}
	return nil
}

// parsePIDFD finds the number, inside, of the process that a pidfd's fdinfo
// tells of: 0 if it has ended and was reaped, -1 if it is none of the sandbox.
func parsePIDFD(text []byte) (int, error) {
	s, _ := field(text, "Pid")
	pid, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("process %q of a pidfd: %w", s, err)
	}
	if pid == -1 {
		return 0, nil
	}
	all, _ := field(text, "NSpid")
	f := strings.Fields(all)
	if pid == 0 || len(f) == 0 {
		return -1, nil
	}
	if pid, err = strconv.Atoi(f[len(f)-1]); err != nil || pid <= 0 {
		return 0, fmt.Errorf("process %q of a pidfd", all)
	}
	return pid, nil
}

// leads reports whether a number inside is that of a captured process, and not
// of another of its threads.
func (c *Capturer) leads(pid int) bool {
	for i := range c.procs {
		if c.procs[i].PID == pid {
			return true
		}
	}
	return false
}

func (pidfd) open(*Opened, *image.File) (int, error) { return -1, errLate }

// openInside opens the pidfd of a process that lives.
func (pidfd) openInside(b *tracee.Batch, f *image.File) tracee.Ref {
	return b.Call(unix.SYS_PIDFD_OPEN, f.PID, f.Flags&(unix.O_NONBLOCK|pidfdThread))
}

// openEnded makes a pidfd of a process that has ended, and was reaped.
func (o *Opened) openEnded(f *image.File) (int, error) {
	if o.target.Ended == nil {
		return -1, fault.New(fault.Internal, "nothing makes a process that has ended")
	}
	fd, err := o.target.Ended()
	if err != nil {
		return -1, err
	}
	return fd, setFlags(fd, f.Flags)
}
