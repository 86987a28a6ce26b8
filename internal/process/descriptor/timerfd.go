package descriptor

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// timerfd are timers (timerfd_create(2)) with the time that remains, their
// interval, and the expirations that nobody has read.
type timerfd struct{ simple }

func (timerfd) name() image.FileKind { return image.Timerfd }

func (timerfd) claims(c *Capturer, d *description) bool { return c.isAnonymous(d, "[timerfd]") }

func (timerfd) examine(c *Capturer, d *description) error {
	// The kernel counts the expirations of an interval when it is asked for
	// the time, so that comes first. It takes none away.
	var left unix.ItimerSpec
	if err := unix.TimerfdGettime(d.fd, &left); err != nil {
		return fmt.Errorf("timerfd_gettime: %w", err)
	}
	text, err := c.info(d)
	if err != nil {
		return err
	}
	clock, flags, ticks, err := parseTimer(text)
	if err != nil {
		return err
	}
	d.file.TimerFlags, d.file.TimerTicks = flags, ticks
	d.file.Timer, err = c.env.Clocks.Timer(clock, flags&unix.TFD_TIMER_ABSTIME != 0, left.Value.Nano(), left.Interval.Nano())
	return err
}

// parseTimer takes the clock, the flags of the last timerfd_settime(2) and the
// unread expirations from fdinfo (proc_pid_fdinfo(5)).
func parseTimer(text []byte) (clock, flags int, ticks uint64, err error) {
	var v [3]uint64
	for i, f := range []struct {
		name string
		base int
	}{{"clockid", 10}, {"settime flags", 8}, {"ticks", 10}} {
		s, _ := field(text, f.name)
		if v[i], err = strconv.ParseUint(s, f.base, 64); err != nil {
			return 0, 0, 0, fmt.Errorf("%s %q of a timerfd: %w", f.name, s, err)
		}
	}
	return int(v[0]), int(v[1]), v[2], nil
}

func (timerfd) open(o *Opened, f *image.File) (int, error) {
	fd, err := unix.TimerfdCreate(f.Timer.Clock, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("timerfd_create: %w", err)
	}
	if err := o.setTimer(fd, f); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, setFlags(fd, f.Flags)
}

func (o *Opened) setTimer(fd int, f *image.File) error {
	absolute := f.TimerFlags&unix.TFD_TIMER_ABSTIME != 0
	due, missed, err := o.target.Clocks.Due(f.Timer, absolute)
	if err != nil {
		return err
	}
	if due > 0 || f.TimerFlags != 0 || f.Timer.Interval > 0 {
		at := due
		if absolute && due > 0 {
			// The flags are part of the state, and an absolute timer of the wall
			// clock follows its changes. The kernel takes times of this process's
			// clock.
			now, err := (Clocks{}).Now(f.Timer.Clock, true)
			if err != nil {
				return err
			}
			at = max(now+due, 1)
		}
		v := unix.ItimerSpec{Interval: unix.NsecToTimespec(f.Timer.Interval), Value: unix.NsecToTimespec(at)}
		if err := unix.TimerfdSettime(fd, f.TimerFlags&(unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET), &v, nil); err != nil {
			return fmt.Errorf("timerfd_settime: %w", err)
		}
	}
	if ticks := f.TimerTicks + missed; ticks > 0 {
		if err := setTicks(fd, binary.LittleEndian.AppendUint64(nil, ticks)); err != nil {
			return fmt.Errorf("unread expirations of a timerfd: %w", err)
		}
	}
	return nil
}
