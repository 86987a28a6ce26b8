package descriptor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// readTerminals captures what is unread in terminals. It has to be taken out
// to be seen, so each is put back before the next is touched.
func (c *Capturer) readTerminals() error {
	for i := range c.terminals {
		t := &c.terminals[i]
		if t.image.MasterGone || len(t.slaves) == 0 && t.image.SessionID == "" {
			continue
		}
		if err := c.readTerminal(t); err != nil {
			return fmt.Errorf("terminal /dev/pts/%d: %w", t.image.Number, err)
		}
	}
	return nil
}

func (c *Capturer) readTerminal(t *terminal) (err error) {
	if ready(t.master, unix.POLLIN) {
		if err := c.openOwn(t); err != nil {
			return err
		}
		if t.image.Output, err = takeOutput(t); err != nil {
			return err
		}
	}
	if len(t.slaves) == 0 { // nobody is there to read, or to be stopped
		return nil
	}
	slave := c.descriptions[t.slaves[0]].fd
	if !ready(t.master, unix.POLLIN) && !ready(slave, unix.POLLOUT) {
		if err := c.openOwn(t); err != nil {
			return err
		}
		if err := errors.Join(lookHeld(t), hold(t.own, t.image)); err != nil {
			return err
		}
	}
	// In canonical mode a line that is still being typed cannot be seen.
	canonical := t.image.Termios.Lflag&unix.ICANON != 0
	if !canonical && !ready(slave, unix.POLLIN) {
		if n, err := unix.IoctlGetInt(slave, unix.TIOCINQ); err != nil || n == 0 {
			return err
		}
	}
	if err := c.openOwn(t); err != nil {
		return err
	}
	t.image.Input, err = takeInput(t)
	return err
}

// openOwn opens the slave once more, without waiting for anything: flags of
// the captured descriptions are not ours to change.
func (c *Capturer) openOwn(t *terminal) (err error) {
	if t.own >= 0 {
		return nil
	}
	if t.image.Locked && t.master >= 0 { // TIOCSPTLCK: nobody can open it, who has it open goes on
		if err := unix.IoctlSetPointerInt(t.master, unix.TIOCSPTLCK, 0); err != nil {
			return fmt.Errorf("unlock the slave: %w", err)
		}
		defer func() {
			if e := unix.IoctlSetPointerInt(t.master, unix.TIOCSPTLCK, 1); err == nil && e != nil {
				err = fmt.Errorf("lock the slave again: %w", e)
			}
		}()
	}
	for _, i := range t.slaves {
		t.own, err = unix.Open(procFD(c.descriptions[i].fd), unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		// /dev/tty does not open again from here.
		if err == nil && isTerminal(t.own, t.image.Number) {
			return nil
		}
		if err == nil {
			_ = unix.Close(t.own)
			err = unix.ENXIO
		}
	}
	t.own = -1
	if t.master >= 0 { // only /dev/tty is open inside: the slave is, so one more changes nothing
		if t.own, err = openPeer(t.master); err == nil {
			return nil
		}
	}
	return fmt.Errorf("open the slave: %w", err)
}

func isTerminal(fd, n int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && (ptySlave{}).claims(nil, &description{stat: st}) && slaveNumber(st.Rdev) == n
}

// ready reports whether poll(2) finds an event. Where none is found, what is
// on its way between the ends has arrived.
func ready(fd int, event int16) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: event}}
	n, err := poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&event != 0
}

// drain reads all that a terminal's end holds.
func drain(fd int, packet bool) (out []byte, err error) {
	var b [4097]byte
	for ready(fd, unix.POLLIN) {
		n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
		if err != nil {
			return out, fmt.Errorf("unread bytes: %w", err)
		}
		if n == 0 {
			break
		}
		if n, err = unix.Read(fd, b[:]); err != nil {
			return out, fmt.Errorf("read: %w", err)
		}
		got := b[:n]
		if packet && n > 0 {
			got = got[1:] // TIOCPKT_DATA
		}
		out = append(out, got...)
	}
	return out, nil
}

// takeInput reads what was typed and not yet read, a line that is not
// finished included, and types it again without echo.
func takeInput(t *terminal) (in []byte, err error) {
	raw := t.image.Termios
	raw.Lflag &^= unix.ICANON | unix.ECHO | unix.ECHONL | unix.ISIG | unix.IEXTEN
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 0
	if err := unix.IoctlSetTermios(t.own, unix.TCSETS2, &raw); err != nil {
		return nil, fmt.Errorf("TCSETS2: %w", err)
	}
	in, err = drain(t.own, false)
	if e := putInput(t.own, t.master, &t.image.Termios, in); err == nil {
		err = e
	}
	return in, err
}

// typedAtOnce is how much input a terminal is sure to hold (N_TTY_BUF_SIZE).
const typedAtOnce = 4000

// putInput types without echo and sets the terminal's state.
func putInput(slave, master int, state *unix.Termios, in []byte) error {
	var err error
	if len(in) > 0 {
		quiet := *state
		quiet.Lflag &= unix.ICANON
		quiet.Iflag &= unix.IXON // to clear it would start a stopped terminal
		for _, c := range []int{unix.VERASE, unix.VKILL, unix.VWERASE, unix.VREPRINT, unix.VLNEXT} {
			quiet.Cc[c] = 0
		}
		if err = unix.IoctlSetTermios(slave, unix.TCSETS2, &quiet); err == nil {
			err = typeIn(slave, master, state, in)
		}
	}
	if e := unix.IoctlSetTermios(slave, unix.TCSETS2, state); err == nil && e != nil {
		err = fmt.Errorf("TCSETS2: %w", e)
	}
	return err
}

func typeIn(slave, master int, state *unix.Termios, in []byte) error {
	eof := state.Lflag&unix.ICANON != 0 && state.Cc[unix.VEOF] != 0
	first := in[:min(len(in), typedAtOnce)]
	for i, b := range first {
		if b == 0 && eof {
			b = state.Cc[unix.VEOF]
		}
		if err := pushByte(slave, b); err != nil {
			return fmt.Errorf("put %d bytes of input back: TIOCSTI: %w", len(in)-i, err)
		}
	}
	if rest := in[len(first):]; len(rest) > 0 {
		if n, err := unix.Write(master, rest); err != nil || n != len(rest) {
			return fmt.Errorf("put %d bytes of input back: %d written: %w", len(rest), n, err)
		}
	}
	return nil
}
