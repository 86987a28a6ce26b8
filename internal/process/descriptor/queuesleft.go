package descriptor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// OpenQueues opens the directory that lists an incarnation's POSIX message queues, by its
// root directory. It is nil if nothing is mounted there.
func OpenQueues(root int) (*os.File, error) {
	fd, err := unix.Openat2(root, "dev/mqueue", &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the directory of message queues: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(fd, &s); err != nil || s.Type != mqueueMagic {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "/dev/mqueue"), nil
}

// listQueues adds the POSIX message queues that nobody has open: they stay, with their
// messages, until they are unlinked (mq_overview(7)).
func (c *Capturer) listQueues() error {
	dir := c.env.Queues
	if dir == nil {
		return nil
	}
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("list message queues: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list message queues: %w", err)
	}
	slices.Sort(names) // so that an image of the same is the same
	for _, name := range names {
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open message queue %s: %w", name, err)
		}
		if err := c.addQueue(fd); err != nil {
			return fmt.Errorf("look at message queue %s: %w", name, err)
		}
	}
	return nil
}

// addQueue adds a queue unless somebody has it open. It takes the descriptor.
func (c *Capturer) addQueue(fd int) error {
	d := description{fd: fd, next: -1, left: true}
	err := c.look(&d)
	for i := 0; err == nil && i < len(c.descriptions); i++ {
		if c.descriptions[i].sameInode(&d) {
			return unix.Close(fd)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	c.descriptions = append(c.descriptions, d)
	return nil
}
