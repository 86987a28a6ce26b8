package inotify

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Event is one event as inotify(7) describes it.
type Event struct {
	Watch  int // the watch's number; -1 in IN_Q_OVERFLOW
	Mask   uint32
	Cookie uint32 // what the two events of a renaming have in common, else 0
	Name   string // in the watched directory, if it tells of a file there
}

// header is the size of struct inotify_event without its name.
const header = unix.SizeofInotifyEvent

// size is how many bytes an event takes in a read: names are padded to a multiple of
// the header's size, with at least one zero byte.
func (e *Event) size() int {
	if e.Name == "" {
		return header
	}
	return header + (len(e.Name)+header)/header*header
}

func size(events []Event) (n int) {
	for i := range events {
		n += events[i].size()
	}
	return n
}

// Unread is how many bytes of events an instance holds (FIONREAD).
func Unread(fd int) (int, error) {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0, fmt.Errorf("FIONREAD of an inotify instance: %w", err)
	}
	return n, nil
}

// Take reads all events of an instance, without waiting for more.
func Take(fd int) (out []Event, err error) {
	buf := make([]byte, 64<<10)
	for {
		n, err := Unread(fd)
		if n == 0 || err != nil {
			return out, err
		}
		if n, err = read(fd, buf); err != nil {
			return out, err
		}
		if out, err = parse(out, buf[:n]); err != nil {
			return out, err
		}
	}
}

func read(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read an inotify instance: %w", err)
		}
		return n, nil
	}
}

// parse appends the events that a read has returned.
func parse(out []Event, b []byte) ([]Event, error) {
	for len(b) > 0 {
		if len(b) < header {
			return out, fmt.Errorf("events of inotify that end in the middle of one")
		}
		n := int(binary.NativeEndian.Uint32(b[12:]))
		if n > len(b)-header {
			return out, fmt.Errorf("an event of inotify with a name of %d bytes, of which %d are there", n, len(b)-header)
		}
		name, _, _ := bytes.Cut(b[header:header+n], []byte{0})
		out = append(out, Event{
			Watch:  int(int32(binary.NativeEndian.Uint32(b))),
			Mask:   binary.NativeEndian.Uint32(b[4:]),
			Cookie: binary.NativeEndian.Uint32(b[8:]),
			Name:   string(name),
		})
		b = b[header+n:]
	}
	return out, nil
}

// discard reads so many events that have no name.
func discard(fd, count int, buf []byte) error {
	for count > 0 {
		n, err := read(fd, buf[:min(count*header, len(buf)/header*header)])
		if err != nil {
			return err
		}
		if n == 0 || n%header != 0 {
			return fmt.Errorf("read an inotify instance: %d bytes of events without names", n)
		}
		count -= n / header
	}
	return nil
}
