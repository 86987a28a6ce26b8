package host

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
)

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// layers mounts EROFS images, each once, for all families that want it.
type layers struct {
	layout layout.Layout
	owner  uint32 // whose files they must be

	mu    sync.Mutex
	users map[string]int // by digest
}

// take mounts a layer unless it is mounted.
func (ls *layers) take(d string) error {
	if !digest.MatchString(d) {
		return fault.New(fault.Invalid, "layer %.80q is no sha256 digest in hex", d)
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.users[d] == 0 {
		if err := ls.mount(d); err != nil {
			return err
		}
	}
	ls.users[d]++
	return nil
}

// release undoes one take. The layer is unmounted with the last.
func (ls *layers) release(d string) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.users[d]--; ls.users[d] > 0 {
		return nil
	}
	delete(ls.users, d)
	target := ls.layout.LayerMount(d)
	err := rootfs.UnmountLayer(target)
	if errors.Is(err, unix.EBUSY) {
		err = mount.Detach(target) // it goes with its last user
	}
	return errors.Join(err, os.Remove(target))
}

func (ls *layers) mount(d string) error {
	image, err := ls.open(d)
	if err != nil {
		return err
	}
	defer image.Close()
	target := ls.layout.LayerMount(d)
	if err := os.Mkdir(target, 0o700); err != nil {
		return fault.New(fault.Internal, "mount layer %s: %w", d, err)
	}
	// Through the descriptor: the node could put another file at the path.
	if err := rootfs.MountLayer(fmt.Sprintf("/proc/self/fd/%d", image.Fd()), target); err != nil {
		return errors.Join(fmt.Errorf("layer %s: %w", d, err), os.Remove(target))
	}
	return nil
}

// open opens a layer's image, which is in a directory that the unprivileged
// node may change: no symbolic link is followed in it.
func (ls *layers) open(d string) (*os.File, error) {
	dir, err := unix.Open(ls.layout.State, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(fault.Internal, "layer %s: state directory: %w", d, err)
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, "images/layers/"+d+".erofs", &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, fault.New(fault.NotFound, "layer %s is not in the store", d).
			WithHint("import the image again")
	}
	if err != nil {
		return nil, fault.New(fault.Invalid, "layer %s: open: %w", d, err)
	}
	f := os.NewFile(uintptr(fd), d)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, fault.New(fault.Internal, "layer %s: %w", d, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != ls.owner {
		f.Close()
		return nil, fault.New(fault.Invalid, "layer %s: mode %#o, user %d: not a regular file of user %d", d, st.Mode, st.Uid, ls.owner)
	}
	return f, nil
}
