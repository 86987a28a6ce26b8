package btrfs

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SuperMagic is the f_type that statfs reports for btrfs.
const SuperMagic = unix.BTRFS_SUPER_MAGIC

// IsFilesystem reports whether fd is on a btrfs.
func IsFilesystem(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, fmt.Errorf("fstatfs: %w", err)
	}
	return st.Type == SuperMagic, nil
}

// IsSubvolume reports whether fd is the root directory of a subvolume: those,
// and only those, have inode number 256.
func IsSubvolume(st *unix.Stat_t) bool { return st.Ino == 256 }

// Sync writes all dirty data of the file system and commits the current
// transaction.
func Sync(fd int) error {
	if err := call(fd, iocSync, nil); err != nil {
		return &Error{Call: names[iocSync], Err: err}
	}
	return nil
}

// Resize sets the size of the file system's first device, in bytes. Growing is
// a change of metadata alone and takes milliseconds; shrinking moves data.
func Resize(fd int, size int64) error { return resize(fd, strconv.FormatInt(size, 10)) }

// ResizeMax lets the file system fill its first device.
func ResizeMax(fd int) error { return resize(fd, "max") }

func resize(fd int, to string) error {
	a := &volArgs1{}
	copy(a.name[:], to)
	return ioctl(fd, iocResize, "to "+to, a)
}

// FSID returns the id by which sysfs knows the mounted file system, in the
// notation of its directory's name under /sys/fs/btrfs.
func FSID(fd int) (string, error) {
	// struct btrfs_ioctl_fs_info_args
	a := &struct {
		maxID, devices uint64
		fsid           [16]byte
		rest           [992]byte
	}{}
	if err := ioctl(fd, iocFSInfo, "", a); err != nil {
		return "", err
	}
	u := a.fsid
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16]), nil
}

// DirtyData returns the bytes of data that were written to the file system's
// cache and promised room, but have no place on the device yet. statfs counts
// that room as free. From /sys/fs/btrfs/FSID/allocation (Linux 3.14).
func DirtyData(fsid string) (int64, error) {
	b, err := os.ReadFile("/sys/fs/btrfs/" + fsid + "/allocation/data/bytes_may_use")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}
