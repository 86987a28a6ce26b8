// Package pressure tells when memory is so short that processes wait for it: the
// kernel's pressure stall information (Documentation/accounting/psi.rst, Linux 4.20).
package pressure

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Memory is the file of the whole machine.
const Memory = "/proc/pressure/memory"

// window is that of triggers. Who has not CAP_SYS_RESOURCE may only have
// windows of whole multiples of two seconds (Linux 6.5).
const window = 2 * time.Second

// Watch is a trigger that is set.
type Watch struct {
	trigger, wake int // descriptors
}

// Open sets a trigger in a pressure file: some task waited for so long of two
// seconds. The error is of kind Unsupported where the kernel counts no pressure.
func Open(path string, stall time.Duration) (*Watch, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, watchError(path, err)
	}
	// The kernel wants the NUL.
	trigger := fmt.Sprintf("some %d %d\x00", stall.Microseconds(), window.Microseconds())
	if _, err := unix.Write(fd, []byte(trigger)); err != nil {
		_ = unix.Close(fd)
		return nil, watchError(path, err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &Watch{fd, wake}, nil
}

func watchError(path string, err error) error {
	for _, e := range []error{unix.ENOENT, unix.EOPNOTSUPP, unix.EPERM, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, e) {
			return fault.New(fault.Unsupported, "watch memory pressure in %s: %w", path, err).
				WithHint("the kernel needs CONFIG_PSI, and no psi=0 in its command line")
		}
	}
	return fmt.Errorf("watch memory pressure in %s: %w", path, err)
}

// Wait waits until the trigger fires, at most once in two seconds. It returns
// false once Close was called, or when nothing will come any more.
func (w *Watch) Wait() bool {
	for {
		fds := []unix.PollFd{{Fd: int32(w.trigger), Events: unix.POLLPRI}, {Fd: int32(w.wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return false
		}
		return fds[1].Revents == 0 && fds[0].Revents&unix.POLLPRI != 0
	}
}

// Wake has Wait return false, now and from now on.
func (w *Watch) Wake() { _, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Close takes the trigger away. Nobody may be in Wait.
func (w *Watch) Close() {
	_ = unix.Close(w.trigger)
	_ = unix.Close(w.wake)
}
