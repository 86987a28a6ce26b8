package descriptor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Clocks are how far the clocks inside are ahead of this process's.
type Clocks struct{ Monotonic, Boottime time.Duration }

// Now is what an [image.Timer] that expires by a clock is measured by, in
// nanoseconds. absolute is for timers that were set to a time of that clock.
func (c Clocks) Now(clock int, absolute bool) (int64, error) {
	id, ahead := int32(unix.CLOCK_MONOTONIC), c.Monotonic
	if clock < 0 || clock == unix.CLOCK_PROCESS_CPUTIME_ID || clock == unix.CLOCK_THREAD_CPUTIME_ID {
		return 0, nil // processor time begins anew in the restored process; below 0 it is a certain one's
	}
	switch clock {
	case unix.CLOCK_REALTIME, unix.CLOCK_REALTIME_ALARM, unix.CLOCK_TAI:
		// A timer that was set to go off after some time does not follow
		// changes of the wall clock.
		if absolute {
			id, ahead = int32(clock), 0
			if clock == unix.CLOCK_REALTIME_ALARM {
				id = unix.CLOCK_REALTIME
			}
		}
	case unix.CLOCK_BOOTTIME, unix.CLOCK_BOOTTIME_ALARM:
		id, ahead = unix.CLOCK_BOOTTIME, c.Boottime
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0, fmt.Errorf("read clock %d: %w", id, err)
	}
	return ts.Nano() + int64(ahead), nil
}

// Timer makes the image of a timer that has been read now: what remains until
// it expires (0 if it is not set), and its interval, in nanoseconds.
func (c Clocks) Timer(clock int, absolute bool, remains, interval int64) (image.Timer, error) {
	t := image.Timer{Clock: clock, Interval: interval}
	if remains == 0 {
		return t, nil
	}
	now, err := c.Now(clock, absolute)
	t.Expires = now + remains
	return t, err
}

// justNow is how close to its expiration a timer with an interval is taken to
// have expired, in nanoseconds: it must not do so while it is being set.
const justNow = 200_000

// Due is when a timer is to expire from now on, in nanoseconds from the present
// and at least 1, or 0 if it is not set. missed is how often it has expired
// between the checkpoint and now: one without an interval that has is due at
// once.
func (c Clocks) Due(t image.Timer, absolute bool) (due int64, missed uint64, err error) {
	if t.Expires == 0 {
		return 0, 0, nil
	}
	now, err := c.Now(t.Clock, absolute)
	if err != nil {
		return 0, 0, err
	}
	due = t.Expires - now
	if t.Interval > 0 && due < justNow {
		missed = uint64((justNow-due)/t.Interval) + 1
		due += int64(missed) * t.Interval
	}
	return max(due, 1), missed, nil
}
