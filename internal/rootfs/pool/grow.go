package pool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// watch grows the pool ahead of need.
func (p *Pool) watch(ctx context.Context) {
	defer close(p.stopped)
	if p.file == nil {
		return // the host's btrfs is the host's to grow
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := p.Grow(); err != nil {
			p.c.Log.Warn("pool: grow", "err", err)
		}
	}
}

// Grow makes the pool larger if it has little room left. It reports whether it
// did; a pool that needs to grow and cannot, because of its bound or the
// host's reserve, is not an error.
func (p *Pool) Grow() (grown bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file == nil {
		return false, nil
	}
	grown, err = p.grow()
	if err != nil {
		return false, rootfs.Errorf("grow pool %s: %w", p.c.Path, err)
	}
	return grown, nil
}

func (p *Pool) grow() (bool, error) {
	free, err := p.free()
	if err != nil {
		return false, err
	}
	size, err := p.size()
	if err != nil {
		return false, err
	}
	step := max(p.c.Step, size/4)
	if free >= p.c.Step {
		p.full = false
		return false, nil
	}
	room, err := p.hostRoom()
	if err != nil {
		return false, err
	}
	step = min(step, room)
	if p.c.Max > 0 {
		step = min(step, p.c.Max-size)
	}
	step = step / align * align
	if step < min(minStep, p.c.Step) {
		p.cannot(size, room)
		return false, nil
	}
	err = allocate(p.file, size, step)
	if errors.Is(err, unix.ENOSPC) { // others were faster
		p.cannot(size, room)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The file must not be shorter than its file system after a crash.
	if err := p.file.Sync(); err != nil {
		return false, err
	}
	if err := p.dev.UpdateSize(); err != nil {
		return false, err
	}
	return true, p.fill(size + step)
}

// free is the room inside that nothing has a claim on, in bytes.
func (p *Pool) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(p.dir, &st); err != nil {
		return 0, err
	}
	dirty, err := btrfs.DirtyData(p.fsid)
	if err != nil {
		return 0, err
	}
	return int64(st.Bavail)*st.Bsize - dirty, nil
}

// cannot says once that the pool stays as it is.
func (p *Pool) cannot(size, room int64) {
	if p.full {
		return
	}
	p.full = true
	p.c.Log.Warn("pool: cannot grow any more; writes inside will fail when it is full",
		"pool", p.c.Path, "size", size, "max", p.c.Max, "room_on_host", room)
}

// fill makes the file system as large as a file of size bytes allows without
// the kept part. One that has taken that part already is left alone.
func (p *Pool) fill(size int64) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(p.dir, &st); err != nil {
		return err
	}
	want := (size - size/keptPart) / align * align
	if want <= int64(st.Blocks)*st.Bsize {
		return nil
	}
	return btrfs.Resize(p.dir, want)
}

func (p *Pool) size() (int64, error) {
	st, err := p.file.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// hostRoom is how many bytes of the host's disk pools may still take.
func (p *Pool) hostRoom() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(p.c.Path), &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: filepath.Dir(p.c.Path), Err: err}
	}
	reserve := p.c.HostReserve
	if reserve == 0 {
		reserve = max(1<<30, int64(st.Blocks)*st.Bsize/20)
	}
	return int64(st.Bavail)*st.Bsize - reserve, nil
}

// allocate extends a file by n bytes at its end, or leaves it as it was.
func allocate(f *os.File, end, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, end, n)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(&os.PathError{Op: "fallocate", Path: f.Name(), Err: err}, f.Truncate(end))
		}
		return nil
	}
}

// avoidCopyOnWrite asks a host file system that would write each change to a
// new place to change the file in place: only then is allocated space enough.
// Others do not know the flag, and need it not.
func avoidCopyOnWrite(f *os.File) {
	const noCOW = 0x00800000 // FS_NOCOW_FL of uapi/linux/fs.h
	fd := int(f.Fd())
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err == nil {
		_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|noCOW))
	}
}
