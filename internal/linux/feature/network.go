package feature

import (
	"fmt"

	"golang.org/x/sys/unix"
)

var networkFeatures = []Feature{
	{
		Name: "TUN", Kernel: "2.6.27",
		For:     "a sandbox's network ends at the gateway",
		Without: "sandboxes have their loopback only",
		Help:    "CONFIG_TUN, modprobe tun; in a container, give it /dev/net/tun",
		probe:   probeTUN,
	},
}

// probeTUN makes a device in a network namespace of its own, which ends with
// the thread.
func probeTUN() error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		defer unix.Close(fd)
		ifr, err := unix.NewIfreq("probe0")
		if err != nil {
			return err
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return fmt.Errorf("TUNSETIFF: %w", err)
		}
		return nil
	})
}
