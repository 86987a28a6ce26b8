package sandbox

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mount"
)

// Nodes of /dev, all mode 0666.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

var devLinks = []struct{ name, target string }{
	{"ptmx", "pts/ptmx"}, {"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"},
	{"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"core", "/proc/kcore"},
}

// Device is what /dev has in a new sandbox: a node, with rights for everybody, or a symbolic
// link. They are the sandbox's root's.
type Device struct {
	Name string
	Rdev uint64 // of a node
	Link string // what a link holds
}

// Devices are those of a new sandbox. The list is not to be changed.
var Devices = sync.OnceValue(func() (all []Device) {
	for _, d := range devices {
		all = append(all, Device{Name: d.name, Rdev: unix.Mkdev(d.major, d.minor)})
	}
	for _, l := range devLinks {
		all = append(all, Device{Name: l.name, Link: l.target})
	}
	return all
})

// DevMade is when a new sandbox's /dev was last changed, as it shows (st_mtime), so that it is seen
// whether anything was made or removed there since.
var DevMade = unix.Timespec{Sec: 1_000_000_000}

// devMount makes a detached /dev. It is a tmpfs of the host's, since device
// nodes of a file system mounted inside do not open, and belongs to the root
// inside, whose host id is owner.
func devMount(owner int) (fd int, err error) {
	id := fmt.Sprint(owner)
	fd, err = mount.New("tmpfs").Set("size", "64k").Set("nr_inodes", "1024").Set("mode", "755").
		Set("uid", id).Set("gid", id).Mount(unix.MOUNT_ATTR_NOEXEC | unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return -1, err
	}
	if err := fillDev(fd, owner); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func fillDev(fd, owner int) error {
	own := func(name string) error {
		if err := unix.Fchownat(fd, name, owner, owner, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("own /dev/%s: %w", name, err)
		}
		return nil
	}
	for _, d := range devices {
		if err := unix.Mknodat(fd, d.name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("make /dev/%s: %w", d.name, err)
		}
		if err := unix.Fchmodat(fd, d.name, 0o666, 0); err != nil { // whatever the umask
			return fmt.Errorf("make /dev/%s: %w", d.name, err)
		}
		if err := own(d.name); err != nil {
			return err
		}
	}
	for _, d := range []string{"pts", "shm", "mqueue"} {
		if err := unix.Mkdirat(fd, d, 0o755); err != nil {
			return fmt.Errorf("make /dev/%s: %w", d, err)
		}
		if err := own(d); err != nil {
			return err
		}
	}
	for _, l := range devLinks {
		if err := unix.Symlinkat(l.target, fd, l.name); err != nil {
			return fmt.Errorf("make /dev/%s: %w", l.name, err)
		}
		if err := own(l.name); err != nil {
			return err
		}
	}
	times := []unix.Timespec{DevMade, DevMade}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), times, 0); err != nil {
		return fmt.Errorf("set the times of /dev: %w", err)
	}
	return nil
}
