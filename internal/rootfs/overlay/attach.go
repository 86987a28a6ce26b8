package overlay

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/mount"
)

// place makes sure that overlayfs takes the store's idmapped mounts as layers.
// Since Linux 6.15 it takes detached ones, by descriptor; before, they are
// attached under dir and named by path.
func (s *Store) place(dir string) error {
	if dir != "" {
		if err := clean(dir); err != nil {
			return err
		}
	}
	err := s.tryDetached()
	if err == nil {
		return nil
	}
	if dir == "" {
		return fault.New(fault.Unsupported, "overlayfs refuses detached layers, and there is no directory to attach them at: %w", err).
			WithHint("Linux 6.15 and newer need no such directory")
	}
	// A mount of its own, so that one call takes everything off again.
	base, err := mount.New("tmpfs").Set("source", "sandtree").Set("mode", "0700").Set("size", "64k").Mount(mappedAttr | unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	err = mount.Attach(base, dir)
	unix.Close(base)
	if err != nil {
		return err
	}
	s.attach = dir
	for i, fd := range append([]int{s.mapped}, s.mappedLayers()...) {
		at := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		// The descriptor goes on to mean the same mount, which now has a place.
		if err := mount.Attach(fd, at); err != nil {
			return err
		}
	}
	return nil
}

// tryDetached mounts an overlay of the store's own mounts, which nobody sees.
func (s *Store) tryDetached() error {
	if forceAttach {
		return unix.EINVAL
	}
	o := mount.New("overlay").Set("source", "sandtree")
	for _, fd := range append(s.mappedLayers(), s.mapped) {
		o.SetFD("lowerdir+", fd)
	}
	fd, err := o.Mount(unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// forceAttach makes tests take the way of older kernels.
var forceAttach = false

// setLayer gives overlayfs a directory, by descriptor if it may be detached
// (Linux 6.15), or by path.
func (s *Store) setLayer(o *mount.FS, option string, fd int) {
	if s.attach == "" {
		o.SetFD(option, fd)
		return
	}
	o.Set(option, procPath(fd))
}

func (s *Store) mappedLayers() []int {
	var fds []int
	for _, l := range s.layers {
		fds = append(fds, l.mapped)
	}
	return fds
}

// clean takes off what a store that was killed left attached.
func clean(dir string) error {
	for {
		err := mount.Detach(dir)
		if errors.Is(err, unix.EINVAL) { // no mount point
			return nil
		}
		if err != nil {
			return err
		}
	}
}
