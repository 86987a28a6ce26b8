package feature

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/sockdiag"
	"github.com/sandtree/sandtree/internal/linux/tcprepair"
	"github.com/sandtree/sandtree/internal/linux/thread"
)

var networkFeatures = []Feature{
	{
		Name: "TUN", Kernel: "2.6.27",
		For:     "a sandbox's network ends at the gateway",
		Without: "sandboxes have their loopback only",
		Help:    "CONFIG_TUN, modprobe tun; in a container, give it /dev/net/tun",
		probe:   probeTUN,
	},
	{
		Name: "socket diagnosis", Kernel: "4.12",
		For:     "which sockets are connected to each other is told by sock_diag",
		Without: "sandboxes with open sockets cannot be checkpointed",
		Help:    "CONFIG_UNIX_DIAG, CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG; modprobe unix_diag tcp_diag",
		probe:   probeDiag,
	},
	{
		Name: "TCP repair", Kernel: "4.19",
		For:     "TCP connections inside a sandbox survive",
		Without: "sandboxes with TCP connections cannot be rolled back or forked",
		Help:    "CONFIG_CHECKPOINT_RESTORE",
		probe:   probeRepair,
	},
	unaccepted,
}

func probeDiag() error {
	c, err := sockdiag.Open()
	if err == nil {
		defer c.Close()
		if _, err = c.Unix(); err == nil {
			_, err = c.TCP(unix.AF_INET)
		}
	}
	if fault.Is(err, fault.Unsupported) {
		err = fmt.Errorf("%w: %w", err, errAbsent)
	}
	return err
}

func probeRepair() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	reuse, err := tcprepair.Enter(fd)
	if err != nil {
		return err
	}
	return tcprepair.Leave(fd, reuse)
}

// probeTUN makes a device in a network namespace of its own, which ends with
// the thread.
func probeTUN() error {
	return thread.Own(func() error {
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
