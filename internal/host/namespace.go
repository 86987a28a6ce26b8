package host

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// marker is the environment variable that tells the second run of this process
// from the first: its pid, and the namespace that it was in before.
const marker = "SANDTREE_LEFT_MOUNT_NAMESPACE"

// enterNamespace executes this program again in a mount namespace of its own.
// It returns in the second run, or with an error.
func enterNamespace() error {
	now, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fault.New(fault.Internal, "mount namespace: %w", err)
	}
	before := os.Getenv(marker)
	if err := os.Unsetenv(marker); err != nil {
		return fault.New(fault.Internal, "mount namespace: %w", err)
	}
	// A value that somebody else has set does not keep us in the host's.
	if pid, ns, ok := strings.Cut(before, " "); ok && pid == fmt.Sprint(os.Getpid()) && ns != now {
		return nil
	}
	// unshare acts on this thread alone; execve ends the others.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fault.New(fault.Permission, "make a mount namespace: unshare: %w", err).
			WithHint("sandtree serve needs CAP_SYS_ADMIN")
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fault.New(fault.Internal, "keep mounts from the host: %w", err)
	}
	env := append(os.Environ(), fmt.Sprintf("%s=%d %s", marker, os.Getpid(), now))
	err = unix.Exec("/proc/self/exe", os.Args, env)
	return fault.New(fault.Internal, "execute myself again: %w", err)
}
