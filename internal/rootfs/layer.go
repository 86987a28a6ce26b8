package rootfs

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/loop"
	"github.com/sandtree/sandtree/internal/linux/mount"
)

// layerAttr keeps a layer's setuid programs and device nodes dead on the host;
// inside a sandbox the attributes of its root count.
const layerAttr = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOATIME

// MountLayer mounts an EROFS image at an existing directory. Where the kernel
// (before 6.12) or the image's file system refuses a mount from the file, a
// loop device stands between, which goes away with the mount.
func MountLayer(image, target string) error {
	abs, err := filepath.Abs(image)
	if err != nil {
		return Errorf("mount layer %s: %w", image, err)
	}
	fd, err := mount.New("erofs").Set("source", abs).Flag("ro").Mount(layerAttr)
	if errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.EINVAL) {
		fd, err = layerByLoop(abs)
	}
	if err != nil {
		return Errorf("mount layer %s: %w", image, err)
	}
	defer unix.Close(fd)
	if err := mount.Attach(fd, target); err != nil {
		return Errorf("mount layer %s: %w", image, err)
	}
	return nil
}

// UnmountLayer takes a layer off its directory. It fails while files of it are
// open; a store's own hold does not count.
func UnmountLayer(target string) error {
	if err := mount.Unmount(target); err != nil {
		return Errorf("unmount layer: %w", err)
	}
	return nil
}

func layerByLoop(image string) (fd int, err error) {
	f, err := os.Open(image)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	dev, err := loop.Attach(f, loop.Options{ReadOnly: true, DirectIO: true})
	if err != nil {
		return -1, err
	}
	defer dev.Close()
	return mount.New("erofs").Set("source", dev.Path()).Flag("ro").Mount(layerAttr)
}
