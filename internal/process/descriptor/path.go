package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// openIn opens a path below a root that nothing inside can lead out of it
// (openat2(2)).
func openIn(root int, name string, flags int) (int, error) {
	return unix.Openat2(root, inRoot(name), &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// reopenable are the flags of an open file description that open(2) takes. The
// others are set with F_SETFL afterwards, or say nothing once it is open.
const reopenable = unix.O_ACCMODE | unix.O_APPEND | unix.O_NONBLOCK | unix.O_SYNC |
	unix.O_DIRECT | unix.O_NOATIME | unix.O_DIRECTORY | unix.O_PATH | unix.O_LARGEFILE

// settable are the flags that F_SETFL changes (fcntl(2)).
const settable = unix.O_APPEND | unix.O_ASYNC | unix.O_DIRECT | unix.O_NOATIME | unix.O_NONBLOCK

// reopen opens what another descriptor of this process refers to once more.
func reopen(fd, flags int) (int, error) {
	if flags&unix.O_TMPFILE == unix.O_TMPFILE { // which is O_DIRECTORY and more
		flags &^= unix.O_TMPFILE
	}
	n, err := unix.Open(procFD(fd), flags&reopenable|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return -1, fmt.Errorf("open it again: %w", err)
	}
	return n, setFlags(n, flags)
}

// setFlags gives a description the captured flags that it has not got by
// opening.
func setFlags(fd, flags int) error {
	if flags&unix.O_PATH != 0 {
		return nil
	}
	now, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && (now^flags)&settable != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, now&^settable|flags&settable)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("set flags %#o: %w", flags, err)
	}
	return nil
}

// find opens the captured file's path with O_PATH and checks that it is a file
// of the same type, and for a device the same device.
func (o *Opened) find(f *image.File) (int, error) {
	fd, err := openIn(o.target.Root, f.Path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("look up %s: %w", f.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("look up %s: %w", f.Path, err)
	}
	if (st.Mode^f.Mode)&unix.S_IFMT != 0 || st.Rdev != f.Rdev {
		_ = unix.Close(fd)
		return -1, fault.New(fault.Internal, "%s is another kind of file than at the checkpoint", f.Path)
	}
	return fd, nil
}

// openPath opens a file by its captured path, flags and position.
func (o *Opened) openPath(f *image.File) (int, error) {
	at, err := o.find(f)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	return openAt(at, f)
}

// openAt opens what another descriptor refers to with a captured file's flags
// and position.
func openAt(at int, f *image.File) (int, error) {
	fd, err := reopen(at, f.Flags)
	if err != nil || f.Pos == 0 {
		return fd, err
	}
	if _, err := unix.Seek(fd, f.Pos, unix.SEEK_SET); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("seek to %d: %w", f.Pos, err)
	}
	return fd, nil
}
