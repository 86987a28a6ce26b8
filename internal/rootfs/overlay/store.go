// Package overlay keeps the files of sandboxes as overlay mounts: EROFS layers
// below, and an upper that is a subvolume of a btrfs.
//
// # On disk
//
//	POOL/ID/upper    what changed over the layers, in overlayfs's own format
//	POOL/ID/work     overlayfs's scratch directory
//	POOL/.rm-ID      removed, waits to be deleted
//
// Each ID is a subvolume, and a snapshot is one that is read-only. Ids on disk
// are those inside a sandbox, so that a pool does not depend on the range its
// family happens to have on the host: all mounts are idmapped.
//
// # Mount options, and why
//
//   - index=off: with index=on a clone fails with ESTALE, since the index
//     holds file handles of the upper it was copied from.
//   - xino=on keeps inode numbers across copy-up and rollback.
//   - redirect_dir=on: without it, renaming a directory of a layer is EXDEV.
//   - metacopy=off: the content of a file is in the layer that shows it, so
//     that package process can open what a mapping shows without an overlay.
//   - volatile: fsync costs nothing; what survives a crash of the host is the
//     last durable checkpoint in any case. The mark that it leaves in the
//     scratch directory is taken off a clone, or its mount would be refused.
//
// # The mounter's ids
//
// Overlayfs works with the credentials of the thread that mounted it. Host uid
// 0 has no id in an idmapped upper, and so cannot make the scratch directory
// there; the overlay then becomes read-only without an error. Therefore
// [Store.MountRoot] mounts as the sandbox's root: see
// [fsid.As].
package overlay

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
)

var _ rootfs.Store = (*Store)(nil)

// mappedAttr keeps setuid programs and devices dead wherever the mount is
// reached other than through a root.
const mappedAttr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// Config says where a store is.
type Config struct {
	// Pool is the mount point of a btrfs, or a directory on one, that this
	// store has to itself.
	Pool string
	// Layers are the mount points of the layers, the topmost first; at least
	// one.
	Layers []string
	// UserNS is a descriptor of the user namespace whose maps the mounts get.
	// The store keeps a duplicate.
	UserNS int
	// Attach is an existing directory at which the store may attach mounts of
	// its own. Kernels before 6.15 need it: there overlayfs takes only layers
	// that have a place in the mount namespace. Close takes them off again; so
	// does the next Open there, and unmounting the directory.
	Attach string
	// Log gets what background work has to say; nil for slog's default.
	Log *slog.Logger
}

// Store is a [rootfs.Store] on overlayfs and btrfs.
type Store struct {
	log    *slog.Logger
	userns int
	pool   int // directory on the btrfs, ids as on disk
	mapped int // the same, idmapped
	layers []layer
	attach string // where mounts are attached; empty if they are all detached
	base   ids    // what root inside is on the host
	top    ids    // owner of the root directory, as on disk
	mode   uint32
	fsid   string
	squota bool
	reaper *reaper
	// passing numbers the snapshots that a comparison makes for itself.
	passing atomic.Uint64

	limits *limits

	mu        sync.Mutex
	uppers    map[string]*upper
	lastQuota uint64
	closed    bool
}

type ids struct{ uid, gid int }

// layer is a read-only tree, twice: with the ids on disk, and idmapped.
type layer struct{ plain, mapped int }

// Open opens the store in a pool, which may hold what an earlier process left
// behind.
func Open(c Config) (*Store, error) {
	s := &Store{log: c.Log, userns: -1, pool: -1, mapped: -1, uppers: map[string]*upper{}}
	if s.log == nil {
		s.log = slog.Default()
	}
	if err := s.open(c); err != nil {
		s.closeFDs()
		return nil, err
	}
	s.limits = newLimits(s.pool, s.fsid)
	s.reaper = newReaper(s.pool, s.limits, s.log)
	if err := s.resumeRemovals(); err != nil {
		s.reaper.stop()
		s.closeFDs()
		return nil, err
	}
	return s, nil
}

func (s *Store) open(c Config) error {
	if len(c.Layers) == 0 {
		return fault.New(fault.Invalid, "open store %s: no layers", c.Pool)
	}
	var err error
	if s.userns, err = unix.FcntlInt(uintptr(c.UserNS), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return rootfs.Errorf("open store %s: user namespace: %w", c.Pool, err)
	}
	if s.pool, err = unix.Open(c.Pool, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return rootfs.Errorf("open store %s: %w", c.Pool, err)
	}
	if ok, err := btrfs.IsFilesystem(s.pool); err != nil {
		return rootfs.Errorf("open store %s: %w", c.Pool, err)
	} else if !ok {
		return fault.New(fault.Unsupported, "open store %s: not on btrfs", c.Pool)
	}
	if s.mapped, err = mount.CloneMapped(unix.AT_FDCWD, c.Pool, s.userns, mappedAttr); err != nil {
		return rootfs.Errorf("open store %s: %w", c.Pool, err)
	}
	if s.base, err = mappedRoot(s.pool, s.mapped); err != nil {
		return rootfs.Errorf("open store %s: %w", c.Pool, err)
	}
	for _, dir := range c.Layers {
		if err := s.openLayer(dir); err != nil {
			return rootfs.Errorf("open store %s: layer: %w", c.Pool, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(s.layers[0].plain, &st); err != nil {
		return rootfs.Errorf("open store %s: topmost layer: %w", c.Pool, err)
	}
	s.top, s.mode = ids{int(st.Uid), int(st.Gid)}, st.Mode&0o7777
	if s.fsid, err = btrfs.FSID(s.pool); err != nil {
		return rootfs.Errorf("open store %s: %w", c.Pool, err)
	}
	if err := s.place(c.Attach); err != nil {
		return rootfs.Errorf("open store %s: %w", c.Pool, err)
	}
	return s.openQuotas()
}

func (s *Store) openLayer(dir string) error {
	plain, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &mount.Error{Call: "open", What: dir, Err: err}
	}
	mapped, err := mount.CloneMapped(unix.AT_FDCWD, dir, s.userns, mappedAttr)
	if err != nil {
		unix.Close(plain)
		return err
	}
	s.layers = append(s.layers, layer{plain, mapped})
	return nil
}

// mappedRoot finds what root inside is on the host, from a directory that root
// owns on disk.
func mappedRoot(plain, mapped int) (ids, error) {
	var p, m unix.Stat_t
	if err := unix.Fstat(plain, &p); err != nil {
		return ids{}, err
	}
	if err := unix.Fstat(mapped, &m); err != nil {
		return ids{}, err
	}
	if p.Uid != 0 || p.Gid != 0 {
		return ids{}, fault.New(fault.Invalid, "the pool's directory belongs to %d:%d, not to root", p.Uid, p.Gid)
	}
	const overflow = 65534 // what stat shows for an id without a mapping
	if m.Uid == overflow || m.Gid == overflow {
		return ids{}, fault.New(fault.Invalid, "the user namespace has no mapping for root")
	}
	return ids{int(m.Uid), int(m.Gid)}, nil
}

// Close implements [rootfs.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.reaper.stop()
	s.closeFDs()
	return nil
}

func (s *Store) closeFDs() {
	for _, u := range s.uppers {
		u.close()
	}
	for _, l := range s.layers {
		unix.Close(l.plain)
		unix.Close(l.mapped)
	}
	for _, fd := range []int{s.userns, s.pool, s.mapped} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if s.attach != "" {
		if err := mount.Detach(s.attach); err != nil {
			s.log.Warn("rootfs: close store", "err", err)
		}
	}
}

// Layers implements [rootfs.Store].
func (s *Store) Layers() int { return len(s.layers) }

// LayerFD implements [rootfs.Store].
func (s *Store) LayerFD(i int) (fd int, err error) {
	if i < 0 || i >= len(s.layers) {
		return -1, fault.New(fault.Invalid, "layer %d of %d", i, len(s.layers))
	}
	// A clone of an idmapped mount has the same map.
	if fd, err = mount.Clone(s.layers[i].mapped, ""); err != nil {
		return -1, rootfs.Errorf("layer %d: %w", i, err)
	}
	return fd, nil
}

// Presync implements [rootfs.Store]. The room is looked at afterwards, since
// statfs takes for free what dirty data was promised.
func (s *Store) Presync() error {
	if err := btrfs.Sync(s.pool); err != nil {
		return rootfs.Errorf("write the pool's dirty data: %w", err)
	}
	return s.roomy()
}

// Flush implements [rootfs.Store].
func (s *Store) Flush(upper string) error {
	if err := s.flush(upper); err != nil {
		return rootfs.Errorf("write the dirty data of %s: %w", upper, err)
	}
	return s.roomy()
}

func (s *Store) flush(id string) error {
	u, err := s.upper(id)
	if err != nil {
		return err
	}
	if err := u.lock(); err != nil {
		return err
	}
	defer u.mu.Unlock()
	return u.snap.Flush(u.fd, s.pool, id)
}

// roomy refuses if there is no room for a checkpoint.
func (s *Store) roomy() error {
	free, total, err := s.free()
	if err != nil {
		return rootfs.Errorf("look at the pool's room: %w", err)
	}
	if free < room(total) {
		return fault.New(fault.Exhausted, "no room for a checkpoint: %d MiB free in the pool", free>>20).
			WithHint("remove checkpoints or sandboxes, or make room on the host's disk")
	}
	return nil
}

// free is the room in the pool and its size, in bytes.
func (s *Store) free() (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.pool, &st); err != nil {
		return 0, 0, err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return 0, 0, fault.New(fault.Internal, "the pool went read-only after an error of its disk")
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// room is how much of a pool of size bytes must be free for a checkpoint: what
// the metadata of a snapshot and of its later deletion may take.
func room(size int64) int64 { return min(max(size/50, 8<<20), 256<<20) }

// Diff implements [rootfs.Store].
func (s *Store) Diff(ctx context.Context, a, b string) ([]rootfs.Change, error) {
	return s.diff(ctx, a, b)
}
