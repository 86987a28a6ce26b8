package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// terminal is a pseudoterminal during a capture.
type terminal struct {
	image  *image.Terminal
	master int   // a duplicate, or the session's; -1 if there is none
	slaves []int // descriptions of the slave
	own    int   // an opening of the slave of our own, or -1; see openOwn
}

// terminal is the index of /dev/pts/N, which is new at its first mention.
func (c *Capturer) terminal(n int) int {
	for i := range c.terminals {
		if c.terminals[i].image.Number == n {
			return i
		}
	}
	t := terminal{image: &image.Terminal{Number: n, Mode: 0o620}, master: -1, own: -1}
	if c.env.SessionPTY != nil {
		if id, master, ok := c.env.SessionPTY(n); ok {
			t.image.SessionID, t.master = id, master
		}
	}
	c.terminals = append(c.terminals, t)
	return len(c.terminals) - 1
}

// examineTerminals captures the state of all terminals and refuses those with
// an end outside.
func (c *Capturer) examineTerminals() error {
	for i := range c.procs {
		if n := c.procs[i].Terminal; n >= 0 {
			c.terminal(n)
		}
	}
	for _, n := range c.env.Terminals {
		c.terminal(n)
	}
	for i := range c.terminals {
		if err := c.examineTerminal(&c.terminals[i]); err != nil {
			return fmt.Errorf("terminal /dev/pts/%d: %w", c.terminals[i].image.Number, err)
		}
	}
	return nil
}

func (c *Capturer) examineTerminal(t *terminal) error {
	if t.master < 0 {
		return c.examineOrphan(t)
	}
	m := t.image
	state, err := unix.IoctlGetTermios(t.master, unix.TCGETS2)
	if err != nil {
		return fmt.Errorf("TCGETS2: %w", err)
	}
	m.Termios = *state
	size, err := unix.IoctlGetWinsize(t.master, unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("TIOCGWINSZ: %w", err)
	}
	m.Winsize = *size
	for _, f := range []struct {
		to  *bool
		req uint
	}{{&m.Packet, unix.TIOCGPKT}, {&m.Locked, unix.TIOCGPTLCK}} {
		v, err := unix.IoctlGetInt(t.master, f.req)
		if err != nil {
			return fmt.Errorf("ioctl %#x: %w", f.req, err)
		}
		*f.to = v != 0
	}
	if g, err := unix.IoctlGetInt(t.master, unix.TIOCGPGRP); err == nil {
		m.Group = c.insidePID(g, true)
	}
	if s, err := unix.IoctlGetInt(t.master, unix.TIOCGSID); err == nil {
		m.Session = c.insidePID(s, false)
	}
	if len(t.slaves) > 0 {
		v, err := unix.IoctlGetInt(c.descriptions[t.slaves[0]].fd, unix.TIOCGEXCL)
		if err != nil {
			return fmt.Errorf("TIOCGEXCL: %w", err)
		}
		m.Exclusive = v != 0
	} else if t.image.SessionID != "" {
		if err := c.ownerOfTerminal(t); err != nil {
			return err
		}
	}
	return c.examineMaster(t)
}

// ownerOfTerminal finds whose a terminal is that no process has open.
func (c *Capturer) ownerOfTerminal(t *terminal) error {
	fd, err := openIn(c.env.Root, fmt.Sprintf("/dev/pts/%d", t.image.Number), unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("look at the slave: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at the slave: %w", err)
	}
	t.image.Mode, t.image.UID, t.image.GID = st.Mode, st.Uid, st.Gid
	return nil
}

// examineMaster looks at what the master would see next.
func (c *Capturer) examineMaster(t *terminal) error {
	p := []unix.PollFd{{Fd: int32(t.master), Events: unix.POLLIN | unix.POLLPRI}}
	if _, err := poll(p, 0); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	r := p[0].Revents
	t.image.SlaveGone = r&unix.POLLHUP != 0 && len(t.slaves) == 0
	if t.image.SessionID != "" {
		return nil
	}
	if r&unix.POLLPRI != 0 || r&unix.POLLIN != 0 && len(t.slaves) == 0 && !t.image.SlaveGone {
		for i := range c.descriptions {
			if d := &c.descriptions[i]; d.fd == t.master {
				return c.refuse(d, fmt.Sprintf("the master of the terminal /dev/pts/%d with news of that to be read", t.image.Number), "let it read").Passing()
			}
		}
	}
	return nil
}

// examineOrphan is for a slave without a master: it is hung up, or the master
// is somebody's outside.
func (c *Capturer) examineOrphan(t *terminal) error {
	if len(t.slaves) == 0 {
		return fault.New(fault.Uncapturable, "a process's controlling terminal /dev/pts/%d is of outside of the sandbox", t.image.Number).
			WithHint("end the process, then try again")
	}
	d := &c.descriptions[t.slaves[0]]
	if _, err := unix.IoctlGetTermios(d.fd, unix.TCGETS2); err != unix.EIO {
		return c.refuseOutside(d, fmt.Sprintf("the terminal %s, whose master is outside of the sandbox,", d.file.Path), "close it")
	}
	t.image.MasterGone = true
	return nil
}

func (c *Capturer) closeTerminals() {
	for i := range c.terminals {
		if fd := c.terminals[i].own; fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	c.terminals = c.terminals[:0]
}
