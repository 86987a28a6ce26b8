package mount

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Clone returns a detached mount of the directory at path (open_tree with
// OPEN_TREE_CLONE, Linux 5.2). path is relative to dirfd; an empty path means
// dirfd itself. The caller needs CAP_SYS_ADMIN over its mount namespace.
func Clone(dirfd int, path string) (fd int, err error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_SYMLINK_NOFOLLOW)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err = ignoringEINTR(func() (int, error) { return unix.OpenTree(dirfd, path, flags) })
	if err != nil {
		return -1, &Error{Call: "open_tree", What: describe(dirfd, path), Err: err}
	}
	return fd, nil
}

// CloneMapped is [Clone] with the ids of a user namespace laid over it: an id
// stored on disk appears as what the namespace's map makes of it (mount_setattr
// with MOUNT_ATTR_IDMAP, Linux 5.12; under overlay 5.19). Further MOUNT_ATTR_*
// flags may be set with it.
func CloneMapped(dirfd int, path string, userns int, attr uint64) (fd int, err error) {
	fd, err = Clone(dirfd, path)
	if err != nil {
		return -1, err
	}
	a := unix.MountAttr{Attr_set: attr | unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &a); err != nil {
		unix.Close(fd)
		return -1, &Error{Call: "mount_setattr", What: describe(dirfd, path) + " idmap", Err: err}
	}
	return fd, nil
}

// Attach makes a detached mount visible at an existing directory of the
// caller's mount namespace.
func Attach(fd int, target string) error {
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &Error{Call: "move_mount", What: target, Err: err}
	}
	return nil
}

// Unmount takes the topmost mount off target. It fails with EBUSY while
// something uses it.
func Unmount(target string) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return &Error{Call: "umount2", What: target, Err: err}
	}
	return nil
}

// Detach takes the topmost mount off target at once; the file system goes away
// when its last user does.
func Detach(target string) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
		return &Error{Call: "umount2", What: target, Err: err}
	}
	return nil
}

func describe(dirfd int, path string) string {
	switch {
	case dirfd == unix.AT_FDCWD || (path != "" && path[0] == '/'):
		return path
	case path == "":
		return fmt.Sprintf("descriptor %d", dirfd)
	default:
		return fmt.Sprintf("%s under descriptor %d", path, dirfd)
	}
}
