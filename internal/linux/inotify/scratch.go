package inotify

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mount"
)

// Scratch is a file system of its own (tmpfs, in no mount namespace) where events are
// made. It is for one thread at a time.
type Scratch struct {
	root int
	path string // of the root, for this process
	junk int    // a descriptor of the file whose events fill queues
	made int    // how many names it has given
	odd  bool   // what is done next to the junk file
	buf  []byte
}

// Names in the root.
const (
	junkName = "junk"
	awayName = "away" // a directory that nobody watches
)

// NewScratch makes one, which needs CAP_SYS_ADMIN and Linux 5.2.
func NewScratch() (*Scratch, error) {
	fd, err := mount.New("tmpfs").Set("size", "1m").Mount(unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("make a place for events of inotify: %w", err)
	}
	s := &Scratch{root: fd, path: "/proc/self/fd/" + strconv.Itoa(fd) + "/", junk: -1, buf: make([]byte, 64<<10)}
	if err = unix.Mkdirat(fd, awayName, 0o700); err == nil {
		s.junk, err = unix.Openat(fd, junkName, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	}
	if err == nil {
		_, err = unix.Pwrite(s.junk, []byte{0}, 0)
	}
	if err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("make a place for events of inotify: %w", err)
	}
	return s, nil
}

// Close gives it up, with all that is in it.
func (s *Scratch) Close() error {
	if s.junk >= 0 {
		_ = unix.Close(s.junk)
	}
	return unix.Close(s.root)
}

// name gives a new name in the root.
func (s *Scratch) name() string {
	s.made++
	return "f" + strconv.Itoa(s.made)
}

// litter makes so many events of the watched junk file. No two neighbours are alike, so
// the kernel keeps each (an event that equals the last one in the queue is dropped).
func (s *Scratch) litter(count int) error {
	var b [1]byte
	for range count {
		var err error
		if s.odd = !s.odd; s.odd {
			_, err = unix.Pwrite(s.junk, b[:], 0)
		} else {
			_, err = unix.Pread(s.junk, b[:], 0)
		}
		if err != nil {
			return fmt.Errorf("use the place for events of inotify: %w", err)
		}
	}
	return nil
}

const junkMask = unix.IN_MODIFY | unix.IN_ACCESS
