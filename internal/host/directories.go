package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/linux/mount"
)

// makeDirectories makes the parts of the state directory, with their owners.
func makeDirectories(l layout.Layout, nodeID uint32) error {
	for _, dir := range []string{l.Pools(), l.Durable(), l.Mounts(), filepath.Dir(l.PoolMount("x")), filepath.Dir(l.LayerMount("x")), filepath.Dir(l.AttachPoint("x"))} {
		if err := ownDirectory(dir, 0); err != nil {
			return err
		}
	}
	for _, dir := range l.NodeDirs() {
		if err := ownDirectory(dir, nodeID); err != nil {
			return err
		}
	}
	return nil
}

// ownDirectory makes a directory that id alone may enter. One that belonged to
// another id, the node's of before, is given over with its content.
func ownDirectory(dir string, id uint32) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.New(fault.Internal, "make state directory: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return fault.New(fault.Internal, "make state directory: %w", err)
	}
	if !st.IsDir() {
		return fault.New(fault.Invalid, "state directory: %s is not a directory", dir)
	}
	if st.Sys().(*syscall.Stat_t).Uid != id {
		err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, int(id), int(id))
		})
		if err != nil {
			return fault.New(fault.Internal, "give %s to user %d: %w", dir, id, err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fault.New(fault.Internal, "make state directory: %w", err)
	}
	return nil
}

// showNodeState mounts the node's directories where the node can reach them,
// whoever may enter the directories above the state directory.
func showNodeState(l layout.Layout) error {
	for _, dir := range l.NodeDirs() {
		target := filepath.Join(l.NodeState(), filepath.Base(dir))
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fault.New(fault.Internal, "make run directory: %w", err)
		}
		if err := bind(dir, target); err != nil {
			return fault.New(fault.Internal, "show the node %s: %w", dir, err)
		}
	}
	return nil
}

func bind(dir, target string) error {
	fd, err := mount.Clone(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
	})
	if err != nil {
		return err
	}
	return mount.Attach(fd, target)
}

// hideNodeState undoes showNodeState.
func hideNodeState(l layout.Layout) error {
	var errs []error
	for _, dir := range l.NodeDirs() {
		target := filepath.Join(l.NodeState(), filepath.Base(dir))
		errs = append(errs, mount.Detach(target), os.Remove(target))
	}
	return errors.Join(append(errs, os.Remove(l.NodeState()))...)
}
