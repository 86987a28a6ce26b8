package sandbox

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tracee"
)

// maxTerminals is how many terminals a sandbox can have open. All devpts but
// the host's own share kernel.pty.max less kernel.pty.reserve, 3072 by default,
// which one sandbox could take alone.
const maxTerminals = 256

// OpenPTY opens a terminal of the incarnation's own devpts, so that it has a
// name inside. The caller closes both ends; the slave once a command has it.
func (i *Incarnation) OpenPTY(w control.Window) (master, slave int, err error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	b := tracee.NewBatch()
	m := b.Call(unix.SYS_OPEN, "/dev/pts/ptmx", flags, 0)
	b.Call(unix.SYS_IOCTL, m, unix.TIOCSPTLCK, b.PutWords(0))
	s := b.Call(unix.SYS_IOCTL, m, unix.TIOCGPTPEER, flags)
	b.SendFDs(m, s)
	fds, err := doAndTidy(i, b, 2)
	if errors.Is(err, unix.ENOSPC) {
		return -1, -1, fault.New(fault.Exhausted, "open a terminal: %w", err).
			WithHint("the sandbox has %d terminals open, or all sandboxes together have the host's kernel.pty.max", maxTerminals)
	}
	if err != nil {
		return -1, -1, doError("open a terminal", err)
	}
	if err := Resize(fds[0], w); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// Resize sets a terminal's size; its foreground processes get SIGWINCH. A zero
// window leaves it as it is.
func Resize(master int, w control.Window) error {
	if w == (control.Window{}) {
		return nil
	}
	size := &unix.Winsize{Row: w.Rows, Col: w.Cols}
	if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, size); err != nil {
		return fault.New(fault.Internal, "resize a terminal to %d by %d: %w", w.Cols, w.Rows, err)
	}
	return nil
}
