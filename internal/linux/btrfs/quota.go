package btrfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// EnableSimpleQuota turns on accounting by owner: an extent is charged to the
// subvolume that wrote it first, for as long as anything refers to it (Linux
// 6.7; EINVAL before). Unlike classic quota groups it costs next to nothing at
// a snapshot. It does nothing where it is on.
func EnableSimpleQuota(fd int) error {
	const enableSimple = 4
	a := &struct{ cmd, status uint64 }{cmd: enableSimple}
	err := ioctl(fd, iocQuotaCtl, "enable simple quotas", a)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// SimpleQuota reports whether simple quotas are on in a mounted file system,
// from /sys/fs/btrfs/FSID/qgroups/mode (Linux 6.7).
func SimpleQuota(fsid string) (bool, error) {
	b, err := os.ReadFile("/sys/fs/btrfs/" + fsid + "/qgroups/mode")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSpace(string(b)) == "squota", err
}

// CreateQgroup makes a quota group of level 1 or above.
func CreateQgroup(fd int, id QgroupID) error {
	a := &struct{ create, id uint64 }{1, uint64(id)}
	return ioctl(fd, iocQgroupCreate, "create "+id.String(), a)
}

// RemoveQgroup deletes a quota group. It fails with EBUSY while the group has
// members or holds bytes.
func RemoveQgroup(fd int, id QgroupID) error {
	a := &struct{ create, id uint64 }{0, uint64(id)}
	return ioctl(fd, iocQgroupCreate, "remove "+id.String(), a)
}

// AssignQgroup makes one group a member of another of a higher level.
func AssignQgroup(fd int, member, group QgroupID) error {
	a := &struct{ assign, src, dst uint64 }{1, uint64(member), uint64(group)}
	return ioctl(fd, iocQgroupAssign, member.String()+" to "+group.String(), a)
}

// UnassignQgroup takes one group out of another.
func UnassignQgroup(fd int, member, group QgroupID) error {
	a := &struct{ assign, src, dst uint64 }{0, uint64(member), uint64(group)}
	return ioctl(fd, iocQgroupAssign, member.String()+" from "+group.String(), a)
}

// LimitQgroup bounds the bytes that a group may hold; further writes of its
// members fail with EDQUOT. bytes ≤ 0 takes the limit away.
func LimitQgroup(fd int, id QgroupID, bytes int64) error {
	const maxReferenced = 1
	a := &struct{ id, flags, maxRfer, maxExcl, rsvRfer, rsvExcl uint64 }{id: uint64(id), flags: maxReferenced}
	a.maxRfer = ^uint64(0) // the kernel's word for "clear this limit"
	if bytes > 0 {
		a.maxRfer = uint64(bytes)
	}
	return ioctl(fd, iocQgroupLimit, fmt.Sprintf("%s to %d bytes", id, bytes), a)
}

// QgroupUsage returns the bytes that a group holds and its limit (0: none), as
// of now, from /sys/fs/btrfs/FSID/qgroups (Linux 5.9). The error is fs.ErrNotExist
// for a group that is not there.
func QgroupUsage(fsid string, id QgroupID) (used, limit int64, err error) {
	dir := "/sys/fs/btrfs/" + fsid + "/qgroups/" + id.String()
	read := func(name string) (uint64, error) {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return 0, err
		}
		return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	}
	u, err := read("referenced")
	if err != nil {
		return 0, 0, err
	}
	l, err := read("max_referenced")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, err
	}
	if l > 1<<62 { // no limit set
		l = 0
	}
	return int64(u), int64(l), nil
}

// QgroupHolds returns the bytes that a group holds together with those that are
// promised to it for data that is not written back yet, as a limit takes them.
func QgroupHolds(fsid string, id QgroupID) (int64, error) {
	dir := "/sys/fs/btrfs/" + fsid + "/qgroups/" + id.String()
	var sum int64
	for _, name := range []string{"referenced", "rsv_data"} {
		b, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
