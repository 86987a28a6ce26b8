package inotify

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Watch is a watch to be added.
type Watch struct {
	Number int
	Mask   uint32 // as for inotify_add_watch(2)
	Path   string // of what is watched; links are followed
}

// setNext is INOTIFY_IOC_SETNEXTWD (linux/inotify.h, Linux 4.16), which takes the
// number itself.
const setNext = 0x40044900

// SetNext sets the number that the next new watch of an instance gets, if it is free.
func SetNext(fd, number int) error {
	if err := unix.IoctlSetInt(fd, setNext, number); err != nil {
		return fmt.Errorf("next number of an inotify watch (%d): %w", number, err)
	}
	return nil
}

// Add adds a watch with its number. The next one's number is changed by that.
func Add(fd int, w Watch) error {
	if err := SetNext(fd, w.Number); err != nil {
		return err
	}
	got, err := unix.InotifyAddWatch(fd, w.Path, w.Mask)
	if err != nil {
		return fmt.Errorf("add the inotify watch %d: %w", w.Number, err)
	}
	if got != w.Number {
		_, _ = unix.InotifyRmWatch(fd, uint32(got))
		return fmt.Errorf("add the inotify watch %d: it got the number %d", w.Number, got)
	}
	return nil
}

// AddAll adds watches so that fdinfo lists them in the given order, in which the newest stands first, and sets
// the number of the next one; 0 leaves that alone.
func AddAll(fd int, watches []Watch, next int) error {
	for i := len(watches) - 1; i >= 0; i-- {
		if err := Add(fd, watches[i]); err != nil {
			return err
		}
	}
	if next == 0 {
		return nil
	}
	return SetNext(fd, next)
}

func remove(fd, number int) error {
	if _, err := unix.InotifyRmWatch(fd, uint32(number)); err != nil {
		return fmt.Errorf("remove the inotify watch %d: %w", number, err)
	}
	return nil
}
