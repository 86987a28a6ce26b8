package inotify

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Look returns the unread events of an instance, which it has afterwards as before, and the number
// that its next watch gets. The given watches are all that it has, as fdinfo lists them (proc_pid_fdinfo(5)):
// those that have unread events are removed for the time and added again.
//
// The cookies of renamings are new ones in the instance, which the returned events do not show.
func (s *Scratch) Look(fd int, watches []Watch) (events []Event, next int, err error) {
	// A watch that does not count is a watch that may be had: without one nothing is touched.
	next, err = unix.InotifyAddWatch(fd, s.path+junkName, junkMask)
	if err != nil {
		return nil, 0, fmt.Errorf("add an inotify watch more: %w", err)
	}
	if err := remove(fd, next); err != nil {
		return nil, 0, err
	}
	if events, err = Take(fd); err != nil {
		return nil, 0, err
	}
	if n := len(events) - 1; n >= 0 && events[n].Watch == next && events[n].Mask&unix.IN_IGNORED != 0 {
		events = events[:n]
	}
	has := map[int]bool{}
	for i := range events {
		has[events[i].Watch] = true
	}
	var again []Watch
	for _, w := range watches {
		if has[w.Number] {
			again = append(again, w)
			err = errors.Join(err, remove(fd, w.Number))
		}
	}
	return events, next, errors.Join(err, s.lay(fd, events, again, next))
}

// Put puts events into the queue of an instance that has neither events nor watches, adds watches as fdinfo is
// to list them, and sets the number that the next one gets. Cookies are new ones. If the instance holds fewer events
// than there are, it overflows at the end.
func (s *Scratch) Put(fd int, events []Event, watches []Watch, next int) error {
	return s.lay(fd, events, watches, next)
}

// lay makes events. The queue holds none but such as nobody needs, without names. Whatever fails, it
// goes on with the rest.
func (s *Scratch) lay(fd int, events []Event, watches []Watch, next int) error {
	steps, err := plan(events)
	var want []Event
	for _, p := range steps {
		want = append(want, p.made...)
	}
	m := maker{scratch: s, fd: fd, places: map[int]*place{}, junk: s.junkNumber(events, watches)}
	err = errors.Join(err, Add(fd, Watch{m.junk, junkMask, s.path + junkName}))
	filling, e := m.fill(want)
	err = errors.Join(err, e)
	for _, p := range steps {
		err = errors.Join(err, m.make(p))
	}
	err = errors.Join(err, m.leave()) // without a trace, since the queue is full
	surplus := 0
	if filling {
		n, e := Unread(fd)
		if err = errors.Join(err, e); e == nil {
			if surplus = n - size(want); surplus < 0 || surplus%header != 0 {
				err = errors.Join(err, fmt.Errorf("put %d events of inotify back: %d bytes of events are there instead of at least %d", len(want), n, size(want)))
				surplus = 0
			}
		}
	}
	return errors.Join(err, AddAll(fd, watches, next), discard(fd, surplus/header, s.buf))
}

// junkNumber is the number of a watch that is neither in events nor among watches.
func (s *Scratch) junkNumber(events []Event, watches []Watch) int {
	n := 1 << 30
	for slices.ContainsFunc(events, func(e Event) bool { return e.Watch == n }) || slices.ContainsFunc(watches, func(w Watch) bool { return w.Number == n }) {
		n++
	}
	return n
}

// fill makes a queue such that it is full when the wanted events are in it, and has told of an overflow. It
// reports false if they alone fill it, and leaves it empty then.
func (m *maker) fill(want []Event) (bool, error) {
	s := m.scratch
	length, err := m.overflow()
	if err != nil {
		return true, err
	}
	room := length - 1 // one more is the event that tells of the overflow
	at := slices.IndexFunc(want, func(e Event) bool { return e.Mask&unix.IN_Q_OVERFLOW != 0 })
	switch {
	case len(want) >= room && (at < 0 || len(want) > room+1):
		return false, discard(m.fd, length, s.buf)
	case at < 0:
		return true, discard(m.fd, len(want)+1, s.buf)
	}
	// The overflow is to stand in the middle: as many before it as there is room for.
	m.rest = min(len(want)-at, room-at)
	return true, errors.Join(discard(m.fd, length, s.buf), s.litter(room-at))
}

// overflow fills a queue until it overflows, and returns how many events it has.
func (m *maker) overflow() (int, error) {
	before, err := Unread(m.fd)
	if err != nil {
		return 0, err
	}
	for count := usualRoom() - before/header + 2; ; count = 512 {
		count = max(count, 2)
		if err := m.scratch.litter(count); err != nil {
			return 0, err
		}
		after, err := Unread(m.fd)
		if err != nil {
			return 0, err
		}
		if (after-before)/header < count {
			return after / header, nil
		}
		before = after
	}
}

// usualRoom is how many events new instances hold.
func usualRoom() int {
	b, _ := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil {
		return 16384
	}
	return n
}
