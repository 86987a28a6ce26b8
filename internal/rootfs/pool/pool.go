// Package pool makes the file system that a family's uppers and snapshots are
// in: a btrfs of its own in a loop file, or a directory on a btrfs that the
// host has.
//
// # The file
//
// A pool's file is always allocated as a whole, never sparse: when the disk
// under a sparse one fills up, btrfs meets an I/O error, aborts its transaction
// and is read-only for every sandbox in it. So it grows by steps of allocated
// space, ahead of need, and stops growing at a reserve that it leaves on the
// host's disk. A pool that cannot grow any more is merely full: writes inside
// fail with ENOSPC, deletions work, and checkpoints are refused.
//
// For the same reason nothing inside is discarded: a discard would punch holes
// into the file.
//
// # A directory of the host's
//
// Such a pool is as large as the host's file system, whose room, quotas and
// mount options are the host's affair and are left as they are. In particular
// quotas are not turned on, since older kernels do not mount what has them.
//
// # Room for deletions
//
// The file system is made smaller than its file by a kept part. When even a
// deletion finds no room, it takes that part (see package overlay).
//
// # What a crash of the host costs
//
// The file system is mounted without barriers, so a power cut may lose a pool.
// Nothing in it is promised to survive one: durable checkpoints are kept
// elsewhere. A killed daemon loses nothing.
package pool

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/linux/loop"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// poolAttr: what sandboxes write must mean nothing to the host's processes.
const poolAttr = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOATIME

// Config says where a pool is and how it grows. Sizes are in bytes; zero means
// the default.
type Config struct {
	// Path is the loop file, made if it is not there; or a directory on a
	// btrfs, which the pool has to itself.
	Path string
	// MountPoint is an existing directory.
	MountPoint string
	// Initial is the size of a new file; default 2 GiB, less if the host's
	// disk has not that much above the reserve.
	Initial int64
	// Step is the room that is kept free inside, and by how much the file
	// grows at least; default 1 GiB. A large pool grows by a quarter of its
	// size.
	Step int64
	// Max bounds the file; default none.
	Max int64
	// HostReserve is what stays free on the host's disk; default 5 % of the
	// disk, and 1 GiB at least.
	HostReserve int64
	// Log gets what the growing has to say; nil for slog's default.
	Log *slog.Logger
}

const (
	// minInitial is the least size of a pool: btrfs resizes to 256 MiB or
	// more, and a part is kept.
	minInitial = 288 << 20
	minStep    = 64 << 20
	keptPart   = 20 // one in this many bytes is kept for deletions
	align      = 1 << 20
	// watchEvery is how often the free space is looked at; the headroom is
	// what a fast writer cannot fill meanwhile.
	watchEvery = 200 * time.Millisecond
	// unmountWithin bounds the wait for the kernel to let go of the mounts of
	// processes that were just killed.
	unmountWithin = 5 * time.Second
)

func (c *Config) setDefaults() {
	if c.Initial == 0 {
		c.Initial = 2 << 30
	}
	if c.Step == 0 {
		c.Step = 1 << 30
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
}

// Pool is a mounted pool.
type Pool struct {
	c    Config
	dir  int          // the mounted root
	fsid string       // its name in sysfs
	file *os.File     // nil for a directory
	dev  *loop.Device // nil for a directory

	mu      sync.Mutex // growing
	full    bool       // it was said that the pool cannot grow
	stop    context.CancelFunc
	stopped chan struct{}
}

// Open mounts a pool, making it if it is not there, and keeps growing it until
// it is closed. The context bounds the opening alone.
func Open(ctx context.Context, c Config) (*Pool, error) {
	c.setDefaults()
	p := &Pool{c: c, dir: -1}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(rootfs.Errorf("open pool %s: %w", c.Path, err), p.release())
	}
	watch, stop := context.WithCancel(context.Background())
	p.stop, p.stopped = stop, make(chan struct{})
	go p.watch(watch)
	return p, nil
}

func (p *Pool) open(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	st, err := os.Stat(p.c.Path)
	var fd int
	switch {
	case err == nil && st.IsDir():
		fd, err = p.mountDirectory()
	case err == nil && !st.Mode().IsRegular():
		err = fault.New(fault.Invalid, "neither a regular file nor a directory")
	case err == nil:
		fd, err = p.mountFile(ctx)
	case errors.Is(err, fs.ErrNotExist):
		if err = p.create(); err == nil {
			fd, err = p.mountFile(ctx)
		}
	}
	if err != nil {
		return err
	}
	err = mount.Attach(fd, p.c.MountPoint)
	unix.Close(fd)
	if err != nil {
		return err
	}
	if p.dir, err = unix.Open(p.c.MountPoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if p.fsid, err = btrfs.FSID(p.dir); err != nil {
		return err
	}
	if p.file == nil {
		return nil
	}
	if err := btrfs.EnableSimpleQuota(p.dir); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY) {
		return err // those two are kernels before 6.7: the store goes without
	}
	size, err := p.size()
	if err != nil {
		return err
	}
	return p.fill(size)
}

// mountDirectory makes a directory of the host's btrfs a pool.
func (p *Pool) mountDirectory() (fd int, err error) {
	fd, err = mount.Clone(unix.AT_FDCWD, p.c.Path)
	if err != nil {
		return -1, err
	}
	ok, err := btrfs.IsFilesystem(fd)
	if err == nil && !ok {
		err = fault.New(fault.Unsupported, "the directory is not on btrfs")
	}
	if err == nil {
		err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: poolAttr &^ unix.MOUNT_ATTR_NOATIME})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// mountFile attaches the pool's file and mounts the file system in it.
func (p *Pool) mountFile(ctx context.Context) (fd int, err error) {
	if p.file, err = os.OpenFile(p.c.Path, os.O_RDWR, 0); err != nil {
		return -1, err
	}
	if err := p.lock(ctx); err != nil {
		return -1, err
	}
	// Through the page cache: a snapshot, which processes stand for, waits for
	// the commit's writes, and with direct I/O for the disk and for the host file
	// system's journal. It took half as long so, measured side by side on a
	// machine with load 6. The price is that the host may cache data twice, which
	// it gives up when memory is short.
	p.dev, err = loop.Attach(p.file, loop.Options{BlockSize: 4096})
	if err != nil {
		return -1, err
	}
	return mount.New("btrfs").Set("source", p.dev.Path()).Flag("nodiscard").Flag("nobarrier").Mount(poolAttr)
}

// lock makes sure that the file is attached once: two file systems writing to
// it would destroy it. The lock belongs to the open file, which the loop device
// shares, and so lasts as long as anybody has the pool mounted, also after this
// process was killed.
func (p *Pool) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, unmountWithin)
	defer cancel()
	for {
		err := unix.Flock(int(p.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return &os.PathError{Op: "flock", Path: p.c.Path, Err: err}
		}
		// The mounts of a process that was just killed take a moment to go.
		select {
		case <-ctx.Done():
			return fault.New(fault.Conflict, "the pool is mounted already").
				WithHint("another daemon, or a process of an earlier one, still uses it")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// create makes the pool's file, under another name until it is whole.
func (p *Pool) create() error {
	room, err := p.hostRoom()
	if err != nil {
		return err
	}
	size := min(p.c.Initial, room) / align * align
	if p.c.Initial < minInitial {
		return fault.New(fault.Invalid, "a pool of %d bytes is too small: it needs %d MiB", p.c.Initial, minInitial>>20)
	}
	if size < minInitial {
		return fault.New(fault.Exhausted, "the host's disk has %d MiB above its reserve, too little for a pool of %d", max(room, 0)>>20, minInitial>>20).
			WithHint("make room on the disk of the state directory")
	}
	temp := p.c.Path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	avoidCopyOnWrite(f)
	err = allocate(f, 0, size)
	if err == nil {
		err = writeEmpty(f)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(temp, p.c.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// Close stops growing and unmounts. Where something still uses the pool it
// vanishes from its mount point and goes away with the last user.
func (p *Pool) Close() error {
	p.stop()
	<-p.stopped
	if err := p.release(); err != nil {
		return rootfs.Errorf("close pool %s: %w", p.c.Path, err)
	}
	return nil
}

// release undoes what open has done so far.
func (p *Pool) release() error {
	var err error
	if p.dir >= 0 {
		unix.Close(p.dir)
		p.dir = -1
		err = unmount(p.c.MountPoint)
	}
	if p.dev != nil {
		err = errors.Join(err, p.dev.Close())
		p.dev = nil
	}
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
		p.file = nil
	}
	return err
}

func unmount(target string) error {
	for deadline := time.Now().Add(unmountWithin); ; time.Sleep(10 * time.Millisecond) {
		err := mount.Unmount(target)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(deadline) {
			return mount.Detach(target)
		}
	}
}

// Destroy closes the pool and deletes everything in it.
func (p *Pool) Destroy() error {
	isDir := p.file == nil
	if isDir {
		if err := p.empty(); err != nil {
			return rootfs.Errorf("destroy pool %s: %w", p.c.Path, err)
		}
	}
	if err := p.Close(); err != nil {
		return err
	}
	if err := os.Remove(p.c.Path); err != nil {
		return rootfs.Errorf("destroy pool %s: %w", p.c.Path, err)
	}
	return nil
}

// empty deletes the subvolumes of a directory on the host's btrfs.
func (p *Pool) empty() error {
	entries, err := os.ReadDir(p.c.MountPoint)
	if err != nil {
		return err
	}
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Fstatat(p.dir, e.Name(), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if !btrfs.IsSubvolume(&st) {
			return fault.New(fault.Conflict, "%s is not a subvolume of the pool's", filepath.Join(p.c.Path, e.Name()))
		}
		if err := btrfs.Destroy(p.dir, e.Name()); err != nil {
			return err
		}
	}
	return nil
}
