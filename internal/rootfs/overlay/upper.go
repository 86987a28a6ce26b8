package overlay

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// upper is a writable subvolume that is in use. Its descriptor and the request
// that snapshots it stand ready, so that a snapshot is one system call.
type upper struct {
	fd    int
	quota rootfs.Quota // 0: none, or not known

	mu      sync.Mutex
	snap    *btrfs.Request
	mounted bool
	removed bool  // and closed
	kept    int64 // what its group had at its last snapshot, in bytes
	id      btrfs.QgroupID
}

// group is the group that counts what is written in the upper. mu is held.
func (u *upper) group() (btrfs.QgroupID, error) {
	if u.id == 0 {
		info, err := btrfs.SubvolumeInfo(u.fd)
		if err != nil {
			return 0, err
		}
		u.id = btrfs.QgroupID(info.ID)
	}
	return u.id, nil
}

// lock takes the upper for an operation, unless it was removed meanwhile.
func (u *upper) lock() error {
	u.mu.Lock()
	if u.removed {
		u.mu.Unlock()
		return fault.New(fault.NotFound, "it was just removed")
	}
	return nil
}

func (u *upper) close() {
	u.removed = true
	unix.Close(u.fd)
	u.snap.Close()
}

// upperDirs are the directories in a subvolume; see the package comment.
const (
	upperDir = "upper"
	workDir  = "work"
)

// CreateUpper implements [rootfs.Store].
func (s *Store) CreateUpper(id string, q rootfs.Quota) error {
	err := s.newSubvolume(id, q, func(r *btrfs.Request) error { return r.Create(s.pool, id) }, s.fillUpper)
	if err != nil {
		return rootfs.Errorf("create upper %s: %w", id, err)
	}
	return nil
}

// Clone implements [rootfs.Store].
func (s *Store) Clone(snapshot, id string, q rootfs.Quota) error {
	if err := s.clone(snapshot, id, q); err != nil {
		return rootfs.Errorf("clone %s to %s: %w", snapshot, id, err)
	}
	return nil
}

func (s *Store) clone(snapshot, id string, q rootfs.Quota) error {
	src, err := s.openID(snapshot)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	return s.newSubvolume(id, q, func(r *btrfs.Request) error { return r.Snapshot(src, s.pool, id, false) }, clearVolatile)
}

// newSubvolume makes a writable subvolume, prepares it and takes it in use.
func (s *Store) newSubvolume(id string, q rootfs.Quota, makeIt func(*btrfs.Request) error, prepare func(fd int) error) error {
	if err := rootfs.ValidID(id); err != nil {
		return err
	}
	return s.pastLimit(q, func() error { return s.trySubvolume(id, q, makeIt, prepare) })
}

func (s *Store) trySubvolume(id string, q rootfs.Quota, makeIt func(*btrfs.Request) error, prepare func(fd int) error) error {
	r := btrfs.NewRequest(qgroup(q))
	defer r.Close()
	if err := makeIt(r); err != nil {
		return err
	}
	fd, err := unix.Openat(s.pool, id, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = prepare(fd); err == nil {
			s.use(id, fd, q)
			return nil
		}
		unix.Close(fd)
	}
	return errors.Join(err, btrfs.Destroy(s.pool, id))
}

func (s *Store) use(id string, fd int, q rootfs.Quota) *upper {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.uppers[id]; u != nil { // another caller was first
		unix.Close(fd)
		return u
	}
	u := &upper{fd: fd, quota: q, snap: btrfs.NewRequest(qgroup(q))}
	s.uppers[id] = u
	return u
}

// fillUpper makes the directories of an empty upper. The root of the mount
// shows the owner and mode of the upper's own directory, so those are copied
// from the topmost layer.
func (s *Store) fillUpper(fd int) error {
	for _, d := range []string{upperDir, workDir} {
		if err := unix.Mkdirat(fd, d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Fchownat(fd, upperDir, s.top.uid, s.top.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(fd, upperDir, s.mode, 0)
}

// clearVolatile takes off the mark that a volatile overlay leaves, because of
// which the next mount would be refused: this upper is known to be good, as it
// was written back as a whole.
func clearVolatile(fd int) error {
	for _, at := range []struct {
		path  string
		flags int
	}{
		{"work/work/incompat/volatile/dirty", 0},
		{"work/work/incompat/volatile", unix.AT_REMOVEDIR},
		{"work/work/incompat", unix.AT_REMOVEDIR},
	} {
		if err := unix.Unlinkat(fd, at.path, at.flags); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// upper returns an upper that is in use, taking in use one that an earlier
// process left. Its quota is not known then; what is made of it counts where
// the file system puts it.
func (s *Store) upper(id string) (*upper, error) {
	s.mu.Lock()
	u := s.uppers[id]
	s.mu.Unlock()
	if u != nil {
		return u, nil
	}
	fd, err := s.openID(id)
	if err != nil {
		return nil, err
	}
	info, err := btrfs.SubvolumeInfo(fd)
	if err == nil && info.ReadOnly {
		err = fault.New(fault.Conflict, "%s is a snapshot, not an upper", id)
	}
	if err == nil {
		err = clearVolatile(fd)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s.use(id, fd, 0), nil
}

// openID opens the subvolume of an id that was not removed.
func (s *Store) openID(id string) (fd int, err error) {
	if err := rootfs.ValidID(id); err != nil {
		return -1, err
	}
	fd, err = unix.Openat(s.pool, id, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, fault.New(fault.NotFound, "no upper or snapshot %s", id)
	}
	return fd, err
}

// Content implements [rootfs.Store].
func (s *Store) Content(id string) (*os.File, error) {
	sub, err := s.openID(id)
	if err != nil {
		return nil, rootfs.Errorf("open the content of %s: %w", id, err)
	}
	defer unix.Close(sub)
	fd, err := unix.Openat(sub, upperDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, rootfs.Errorf("open the content of %s: %w", id, err)
	}
	return os.NewFile(uintptr(fd), id), nil
}

// Snapshot implements [rootfs.Store].
func (s *Store) Snapshot(id, snapshot string) error {
	if err := s.snapshot(id, snapshot); err != nil {
		return rootfs.Errorf("snapshot %s as %s: %w", id, snapshot, err)
	}
	return nil
}

func (s *Store) snapshot(id, snapshot string) error {
	if err := rootfs.ValidID(snapshot); err != nil {
		return err
	}
	u, err := s.upper(id)
	if err != nil {
		return err
	}
	if err := u.lock(); err != nil {
		return err
	}
	defer u.mu.Unlock()
	if err := u.snap.Snapshot(u.fd, s.pool, snapshot, true); err != nil {
		return err
	}
	s.keptBy(u)
	return nil
}
