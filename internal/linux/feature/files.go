package feature

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

var fileFeatures = []Feature{
	{
		Name: "EROFS", Kernel: "5.4", Required: true,
		For:     "images are read-only layers that all sandboxes share",
		Without: "nothing runs",
		Help:    "CONFIG_EROFS_FS, modprobe erofs",
		probe:   func() error { return fsContext("erofs", func(int) error { return nil }) },
	},
	{
		Name: "EROFS from a file", Kernel: "6.12",
		For:     "a layer is mounted in 0.1 ms and takes no loop device",
		Without: "each layer takes a loop device",
		Help:    "CONFIG_EROFS_FS_BACKED_BY_FILE",
		probe:   probeErofsFile,
	},
	{
		Name: "overlay", Kernel: "5.19", Required: true,
		For:     "a sandbox's root is layers with its own changes above, with its own user ids",
		Without: "nothing runs",
		Help:    "CONFIG_OVERLAY_FS, modprobe overlay",
		probe:   probeOverlay,
	},
	{
		Name: "overlay of detached layers", Kernel: "6.15",
		For:     "roots are mounted from layers that have no path",
		Without: "layers are attached in the daemon's mount namespace and named by path",
		probe:   probeDetachedLayers,
	},
	{
		Name: "id-mapped mounts", Kernel: "5.12", Required: true,
		For:     "files of images and sandboxes are stored once for all ranges of user ids",
		Without: "nothing runs",
		Help:    "a file system under the state directory that has them (ext4, xfs, btrfs)",
		probe:   probeIDMap,
	},
	{
		Name: "btrfs", Kernel: "6.7", Required: true,
		For:     "the changes of a sandbox are snapshot in a millisecond",
		Without: "nothing runs",
		Help:    "CONFIG_BTRFS_FS, modprobe btrfs",
		probe:   func() error { return fsContext("btrfs", func(int) error { return nil }) },
	},
	{
		Name: "loop devices", Kernel: "5.8",
		For:     "the pool of a family is a file under the state directory",
		Without: "the state directory must itself be btrfs",
		Help:    "CONFIG_BLK_DEV_LOOP, modprobe loop; in a container, give it /dev/loop-control and loop devices",
		probe: func() error {
			fd, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open /dev/loop-control: %w", err)
			}
			return unix.Close(fd)
		},
	},
	{
		Name: "btrfs simple quotas", Kernel: "6.7",
		For:     "a sandbox's files and checkpoints are bounded together",
		Without: "limits on disk are refused",
		probe: func() error {
			// The directory comes with the module, which fsopen loads.
			_ = fsContext("btrfs", func(int) error { return nil })
			_, err := os.Stat("/sys/fs/btrfs/features/simple_quota")
			return err
		},
	},
	deviceNumbers,
}

// probeErofsFile makes a super block from the smallest image there is, in an
// unnamed file, and mounts it nowhere.
func probeErofsFile() error {
	f, err := unnamedFile()
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(emptyErofs()); err != nil {
		return err
	}
	return fsContext("erofs", func(fs int) error {
		if err := unix.FsconfigSetString(fs, "source", fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
			return err
		}
		if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
			return err
		}
		if err := unix.FsconfigCreate(fs); err != nil {
			return fmt.Errorf("mount EROFS from a file: %w", err)
		}
		return nil
	})
}

// unnamedFile is a file of a file system on disk. That of /tmp is often
// memory, which EROFS does not take.
func unnamedFile() (*os.File, error) {
	var errs []error
	for _, dir := range []string{"/var/lib", "/var/tmp", os.TempDir()} {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return os.NewFile(uintptr(fd), dir), nil
		}
		errs = append(errs, fmt.Errorf("unnamed file in %s: %w", dir, err))
	}
	return nil, errors.Join(errs...)
}

// emptyErofs is an image with an empty root directory: super block at 1024,
// behind it the inode of the root, its two entries inline
// (Documentation/filesystems/erofs.rst).
func emptyErofs() []byte {
	const (
		block      = 4096
		super      = 1024
		root       = super + 128
		flatInline = 2
	)
	le := binary.LittleEndian
	p := make([]byte, block)
	le.PutUint32(p[super:], 0xe0f5e1e2)
	p[super+12] = 12                      // block size, log2
	le.PutUint16(p[super+14:], root/32)   // root's number
	le.PutUint64(p[super+16:], 1)         // inodes
	le.PutUint32(p[super+36:], 1)         // blocks
	le.PutUint16(p[root:], flatInline<<1) // compact inode
	le.PutUint16(p[root+4:], unix.S_IFDIR|0o755)
	le.PutUint16(p[root+6:], 2)       // links
	const names = 2 * 12              // they follow the entries
	le.PutUint32(p[root+8:], names+3) // size
	dir := p[root+32:]
	for i, at := range []uint16{names, names + 1} { // ".", ".."
		e := dir[12*i:]
		le.PutUint64(e, root/32)
		le.PutUint16(e[8:], at)
		e[10] = 2 // directory
	}
	copy(dir[names:], "...")
	return p
}

// probeIDMap maps the mounts of directories where state may be.
func probeIDMap() error {
	var errs []error
	for _, dir := range []string{"/var/lib", os.TempDir()} {
		tree, err := mappedTree(dir)
		if err == nil {
			return unix.Close(tree)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// mappedTree is a detached copy of a directory's mount with the ids of a
// child's user namespace.
func mappedTree(dir string) (int, error) {
	pid, err := start(pauseCode, namespaces(unix.CLONE_NEWUSER))
	if err != nil {
		return -1, err
	}
	defer end(pid)
	user, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(user)
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open_tree %s: %w", dir, err)
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(user)}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(tree)
		return -1, fmt.Errorf("mount_setattr %s: %w", dir, err)
	}
	return tree, nil
}
