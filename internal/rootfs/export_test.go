package rootfs

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mount"
)

// MountLayerByLoop takes the way of kernels before 6.12.
func MountLayerByLoop(image, target string) error {
	fd, err := layerByLoop(image)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return mount.Attach(fd, target)
}
