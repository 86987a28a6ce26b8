package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tracee"
)

// OpenPTY opens a terminal of the incarnation's own devpts, so that it has a
// name inside. The caller closes both ends; the slave once a command has it.
func (i *Incarnation) OpenPTY(w control.Window) (master, slave int, err error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	b := tracee.NewBatch()
	m := b.Call(unix.SYS_OPEN, "/dev/pts/ptmx", flags, 0)
	b.Call(unix.SYS_IOCTL, m, unix.TIOCSPTLCK, b.PutWords(0))
	s := b.Call(unix.SYS_IOCTL, m, unix.TIOCGPTPEER, flags)
	b.SendFDs(m, s)
	fds, err := i.doAndTidy(b, 2)
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

// doAndTidy runs a batch that leaves descriptors open in PID 1, and closes
// them, whether the batch succeeds or not.
func (i *Incarnation) doAndTidy(b *tracee.Batch, n int, fds ...int) ([]int, error) {
	b.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0)
	got, err := i.DoReceive(b, n, fds...)
	if err == nil {
		return got, nil
	}
	tidy := tracee.NewBatch()
	tidy.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0)
	if e := i.Do(tidy); e != nil {
		return nil, fmt.Errorf("%w; then: %w", err, e)
	}
	return nil, err
}
