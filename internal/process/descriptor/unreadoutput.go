package descriptor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// takeOutput reads what the master has not read yet and writes it again by the
// slave, as it is.
func takeOutput(t *terminal) (out []byte, err error) {
	out, err = drain(t.master, t.image.Packet)
	if e := lookHeld(t); e != nil && err == nil {
		err = e
	}
	defer func() {
		if e := hold(t.own, t.image); err == nil {
			err = e
		}
	}()
	if len(out) == 0 {
		return nil, err
	}
	if len(out) > muchOutput {
		if e := renewBuffer(t, out); e != nil {
			return out, e
		}
	}
	if e := putOutput(t.own, t.master, t.image, out); err == nil {
		err = e
	}
	return out, err
}

// Arguments of TCXONC (tcflow(3)).
const (
	tcoOff = 0
	tcoOn  = 1
)

// lookHeld finds out why a terminal without unread output takes none: ^S has stopped
// it, or TCOOFF holds it, which nothing but TCOON takes back. It goes on in the
// latter case, until hold. One in packet mode would tell its master of that: it is
// taken for stopped.
func lookHeld(t *terminal) error {
	t.image.Held, t.image.Stopped = false, !ready(t.own, unix.POLLOUT)
	if !t.image.Stopped || t.image.Packet {
		return nil
	}
	if err := unix.IoctlSetInt(t.own, unix.TCXONC, tcoOn); err != nil {
		return fmt.Errorf("TCXONC: %w", err)
	}
	t.image.Held = ready(t.own, unix.POLLOUT)
	t.image.Stopped = !t.image.Held
	return nil
}

// hold holds a terminal that TCOOFF held.
func hold(slave int, t *image.Terminal) error {
	if !t.Held {
		return nil
	}
	if err := unix.IoctlSetInt(slave, unix.TCXONC, tcoOff); err != nil {
		return fmt.Errorf("TCXONC: %w", err)
	}
	return nil
}

// smallBuffer is how much fits half of the smallest buffer of a terminal.
const smallBuffer = 256

// renewBuffer gives a terminal that was emptied a small last buffer: the kernel
// keeps the last one, and what is put back would begin in a large one's rest
// and not all fit. It sends the output's beginning through, in pieces that take
// a small buffer when whatever is left of the old one is full.
func renewBuffer(t *terminal, out []byte) error {
	const largest = 2 * 1792
	if err := plainOutput(t.own, t.image); err != nil {
		return err
	}
	for at := 0; at <= largest; at += smallBuffer {
		for sent := 0; sent < smallBuffer; {
			n, err := unix.Write(t.own, out[at+sent:at+smallBuffer])
			if err != nil {
				return fmt.Errorf("renew the buffer: write: %w", err)
			}
			sent += n
		}
		if _, err := drain(t.master, t.image.Packet); err != nil {
			return err
		}
	}
	return nil
}

// growBuffers gives a new terminal as many small buffers as one can have.
func growBuffers(slave, master int, t *image.Terminal) error {
	if err := plainOutput(slave, t); err != nil {
		return err
	}
	var err error
	for err == nil { // it does not wait
		_, err = unix.Write(slave, make([]byte, smallBuffer))
	}
	if err != unix.EAGAIN {
		return fmt.Errorf("fill it: %w", err)
	}
	_, err = drain(master, false)
	return err
}

// plainOutput makes a slave take output as it is, and starts a stopped one.
func plainOutput(slave int, t *image.Terminal) error {
	plain := t.Termios
	plain.Oflag &^= unix.OPOST
	if t.Stopped {
		plain.Iflag &^= unix.IXON // which starts it
	}
	if err := unix.IoctlSetTermios(slave, unix.TCSETS2, &plain); err != nil {
		return fmt.Errorf("TCSETS2: %w", err)
	}
	return nil
}

// readerRoom is how much unread output a master's line discipline holds
// (N_TTY_BUF_SIZE less one); what is more waits before it.
const readerRoom = 4095

// muchOutput is what a terminal takes however it is written.
const muchOutput = 8 << 10

// pieceOf is how much output to write at once behind what was written, so that
// a terminal takes as much as it ever took from a program. The kernel counts its
// buffers against 8 KiB (pty_common_install), gives one more when they are
// full, and lets each hold twice its size if it is filled exactly: a write of
// more than half of what is left takes a new one. Small ones that were used
// before are not counted (tty_buffer_alloc).
func pieceOf(written int) int {
	switch {
	case written < 16<<10:
		return 1024
	case written < 16<<10+2*1792: // the largest (TTY_BUFFER_PAGE)
		return 1792
	}
	return smallBuffer
}

// putOutput writes to a slave as it is, and sets the terminal's state.
func putOutput(slave, master int, t *image.Terminal, out []byte) error {
	if err := plainOutput(slave, t); err != nil {
		return err
	}
	if len(out) > muchOutput { // more than is sure to fit if the reader's room is empty
		for i, b := range out[:readerRoom] {
			if err := pushByte(master, b); err != nil {
				return fmt.Errorf("put %d bytes of output back: TIOCSTI: %w", len(out)-i, err)
			}
		}
		out = out[readerRoom:]
	}
	written := 0
	for waits := 0; len(out) > 0; {
		n, err := unix.Write(slave, out[:min(len(out), pieceOf(written))])
		if (err == unix.EAGAIN || err == nil && n == 0) && waits < 1000 {
			// The last buffer of what was taken out is still counted, until a
			// kernel thread finds it empty. Nothing tells when it has.
			waits++
			time.Sleep(100 * time.Microsecond)
			continue
		}
		if err != nil {
			return fmt.Errorf("put %d bytes of output back: %w", len(out), err)
		}
		out = out[n:]
		written += n
	}
	if err := unix.IoctlSetTermios(slave, unix.TCSETS2, &t.Termios); err != nil {
		return fmt.Errorf("TCSETS2: %w", err)
	}
	if t.Stopped {
		return stop(slave, &t.Termios)
	}
	return nil
}

// stop stops a terminal's output as ^S does, whatever its settings are.
func stop(slave int, state *unix.Termios) error {
	stopping := *state
	stopping.Iflag |= unix.IXON
	if stopping.Cc[unix.VSTOP] == 0 {
		stopping.Cc[unix.VSTOP] = 0x13
	}
	err := unix.IoctlSetTermios(slave, unix.TCSETS2, &stopping)
	if err == nil {
		err = pushByte(slave, stopping.Cc[unix.VSTOP])
	}
	if err == nil && stopping != *state {
		err = unix.IoctlSetTermios(slave, unix.TCSETS2, state)
	}
	if err != nil {
		return fmt.Errorf("stop it: %w", err)
	}
	return nil
}
