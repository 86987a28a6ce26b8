package feature

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
)

// probeOverlay makes an overlay super block over two directories, one of them
// a mount with mapped ids. Before Linux 6.15 overlayfs takes mounts of the
// caller's mount namespace only, so the mapped one is attached: in a mount
// namespace that ends with the probe.
func probeOverlay() error {
	return withTrees(func(mapped int, plain string) error {
		return inOwnMounts(func() error {
			at := filepath.Join(filepath.Dir(plain), "mapped")
			if err := os.Mkdir(at, 0o700); err != nil {
				return err
			}
			if err := unix.MoveMount(mapped, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
				return fmt.Errorf("move_mount: %w", err)
			}
			return makeOverlay(func(fs int) error {
				err := unix.FsconfigSetString(fs, "lowerdir", at+":"+plain)
				if err != nil {
					err = fmt.Errorf("overlay lowerdir: %w", err)
				}
				return err
			})
		})
	})
}

// probeDetachedLayers gives overlay the same by descriptor. Linux 6.13 and
// 6.14 know the option and refuse a mount that is not attached.
func probeDetachedLayers() error {
	return withTrees(func(mapped int, plain string) error {
		fd, err := unix.Open(plain, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return makeOverlay(func(fs int) error {
			for _, layer := range []int{mapped, fd} {
				err := unix.FsconfigSetFd(fs, "lowerdir+", layer)
				if errors.Is(err, unix.EBADF) {
					// Where the option takes no descriptor, the kernel looks
					// for a file, which one of O_PATH is not.
					err = fmt.Errorf("%w: %w", err, errAbsent)
				}
				if err != nil {
					return fmt.Errorf("overlay lowerdir+ by descriptor: %w", err)
				}
			}
			return nil
		})
	})
}

// makeOverlay makes a super block with the layers that the caller sets.
func makeOverlay(layers func(fs int) error) error {
	return fsContext("overlay", func(fs int) error {
		if err := layers(fs); err != nil {
			return err
		}
		for _, o := range [][2]string{{"xino", "on"}, {"redirect_dir", "follow"}} {
			if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
				return fmt.Errorf("overlay option %s: %w", o[0], err)
			}
		}
		if err := unix.FsconfigCreate(fs); err != nil {
			return fmt.Errorf("mount overlay: %w", err)
		}
		return nil
	})
}

// withTrees hands f two empty directories: the detached mount of one, with
// mapped ids, and the path of another.
func withTrees(f func(mapped int, plain string) error) error {
	dir, err := os.MkdirTemp("", "sandtree-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"/a", "/b"} {
		if err := os.Mkdir(dir+d, 0o700); err != nil {
			return err
		}
	}
	mapped, err := mappedTree(dir + "/a")
	if err != nil {
		return err
	}
	defer unix.Close(mapped)
	return f(mapped, dir+"/b")
}

// inOwnMounts runs f on a thread with a mount namespace of its own, from which
// nothing spreads and which ends with the thread.
func inOwnMounts(f func() error) error {
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mounts: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		return f()
	})
}
