package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// pipe are pipes both of whose ends are in the sandbox, or one of them if the
// other was closed.
type pipe struct{ simple }

const pipefsMagic = 0x50495045 // PIPEFS_MAGIC, linux/magic.h

func (pipe) name() image.FileKind { return image.Pipe }

func (pipe) claims(c *Capturer, d *description) bool {
	return d.format() == unix.S_IFIFO && c.system(d) == pipefsMagic
}

func (pipe) examine(c *Capturer, d *description) error {
	d.file.Object = c.object(d)
	if err := c.examinePipe(d); err != nil {
		return err
	}
	if err := c.ownerOfPipe(d); err != nil {
		return err
	}
	outside, err := c.endOutside(d)
	if err != nil {
		return err
	}
	if outside {
		return c.refuseOutside(d, "a pipe whose other end is outside of the sandbox", "close it")
	}
	return nil
}

// ownerOfPipe notes who may open a pipe again by /proc/self/fd (/dev/stdout), as
// the sandbox numbers users and groups.
func (c *Capturer) ownerOfPipe(d *description) error {
	m, err := c.idsOf(d.proc)
	if err != nil {
		return err
	}
	d.file.UID, d.file.GID = uint32(m.users.in(int(d.stat.Uid))), uint32(m.groups.in(int(d.stat.Gid)))
	return nil
}

// OwnPipes gives pipes to their owners, without whom nobody inside could open
// /dev/stdout. Any process of the sandbox will do, by its number on the host.
func (o *Opened) OwnPipes(host int) error {
	var m *ids
	done := map[int]bool{}
	for i, f := range o.files {
		if f.Kind != image.Pipe && f.Kind != image.Session || o.fd[i] < 0 || done[f.Object] {
			continue
		}
		if m == nil {
			var err error
			if m, err = readIDs(host); err != nil {
				return err
			}
		}
		done[f.Object] = true
		if err := unix.Fchown(o.fd[i], m.users.out(int(f.UID)), m.groups.out(int(f.GID))); err != nil {
			return fmt.Errorf("give a pipe to its owner: %w", err)
		}
	}
	return nil
}

// endOutside reports whether the other end of a pipe is open though nobody
// here has it.
func (c *Capturer) endOutside(d *description) (bool, error) {
	reads, writes := false, false
	for i := range c.descriptions {
		if e := &c.descriptions[i]; e.format() == unix.S_IFIFO && e.sameInode(d) {
			reads, writes = reads || e.readable(), writes || e.writable()
		}
	}
	if reads && writes {
		return false, nil
	}
	p := []unix.PollFd{{Fd: int32(d.fd)}}
	if _, err := poll(p, 0); err != nil {
		return false, fmt.Errorf("poll a pipe: %w", err)
	}
	return p[0].Revents&(unix.POLLHUP|unix.POLLERR) == 0, nil
}

func (pipe) read(c *Capturer, d *description) error { return c.readPipe(d, -1) }

func (pipe) open(o *Opened, f *image.File) (int, error) {
	p, ok := o.pipes[f.Object]
	if !ok {
		p = &pipeEnds{}
		if err := unix.Pipe2(p.fd[:], unix.O_CLOEXEC); err != nil {
			return -1, fmt.Errorf("pipe2: %w", err)
		}
		o.pipes[f.Object] = p
		if err := fillPipe(p.fd[1], f); err != nil {
			return -1, err
		}
	}
	return p.open(f)
}

// pipeEnds are the two ends of a pipe that is being restored.
type pipeEnds struct {
	fd    [2]int
	given [2]bool
}

// open gives the ends themselves to the first descriptions that want them, and
// opens others anew.
func (p *pipeEnds) open(f *image.File) (int, error) {
	end := 0
	switch f.Flags & unix.O_ACCMODE {
	case unix.O_WRONLY:
		end = 1
	case unix.O_RDWR:
		return reopen(p.fd[0], f.Flags)
	}
	if p.given[end] {
		return reopen(p.fd[end], f.Flags)
	}
	p.given[end] = true
	fd, err := unix.FcntlInt(uintptr(p.fd[end]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate an end of a pipe: %w", err)
	}
	return fd, setFlags(fd, f.Flags)
}

func (p *pipeEnds) close() {
	_ = unix.Close(p.fd[0])
	if p.fd[1] != p.fd[0] {
		_ = unix.Close(p.fd[1])
	}
}
