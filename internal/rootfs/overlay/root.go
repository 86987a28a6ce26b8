package overlay

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/fsid"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// errReadOnly is what becomes of an overlay that cannot write in its scratch
// directory, most likely for want of room.
var errReadOnly = fault.New(fault.Internal, "overlayfs made it read-only, because it could not use its scratch directory")

// MountRoot implements [rootfs.Store].
func (s *Store) MountRoot(id string) (fd int, err error) {
	fd, err = s.mountRoot(id)
	if err != nil {
		return -1, rootfs.Errorf("mount the root of %s: %w", id, err)
	}
	return fd, nil
}

func (s *Store) mountRoot(id string) (fd int, err error) {
	u, err := s.upper(id)
	if err != nil {
		return -1, err
	}
	if err := u.lock(); err != nil {
		return -1, err
	}
	defer u.mu.Unlock()
	if u.mounted {
		return -1, fault.New(fault.Conflict, "the upper was mounted before")
	}
	up, err := s.openMapped(id + "/" + upperDir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	work, err := s.openMapped(id + "/" + workDir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(work)
	err = s.pastLimit(u.quota, func() error {
		return fsid.As(s.base.uid, s.base.gid, func() error {
			fd, err = s.overlay(up, work)
			return err
		})
	})
	if errors.Is(err, errReadOnly) {
		if free, total, e := s.free(); e == nil && free < room(total) {
			err = fmt.Errorf("%w: %w", errReadOnly.Err, unix.ENOSPC)
		}
	}
	if err != nil {
		return -1, err
	}
	u.mounted = true
	return fd, nil
}

// overlay mounts an upper over the layers and makes sure that it is writable:
// overlayfs falls back to read-only without an error.
func (s *Store) overlay(up, work int) (fd int, err error) {
	o := mount.New("overlay").Set("source", "sandtree")
	for _, l := range s.layers {
		s.setLayer(o, "lowerdir+", l.mapped)
	}
	s.setLayer(o, "upperdir", up)
	s.setLayer(o, "workdir", work)
	o.Set("index", "off").Set("metacopy", "off").Set("xino", "on").Set("redirect_dir", "on").Flag("volatile")
	// Device nodes in a layer must not lead to the host's devices; setuid
	// programs are the sandbox's own affair.
	fd, err = o.Mount(unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, err
	}
	var st unix.Statfs_t
	if err = unix.Fstatfs(fd, &st); err == nil && st.Flags&unix.ST_RDONLY != 0 {
		err = errReadOnly
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (s *Store) openMapped(path string) (fd int, err error) {
	return unix.Openat(s.mapped, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}
