package btrfs_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
)

// filesystem mounts a btrfs for a test and returns its directory, open and by
// name.
func filesystem(t *testing.T) (fd int, dir string) {
	t.Helper()
	base := t.TempDir()
	dir = filepath.Join(base, "mnt")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := pool.Open(t.Context(), pool.Config{Path: filepath.Join(base, "img"), MountPoint: dir, Initial: 320 << 20, HostReserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return open(t, dir), dir
}

func open(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSubvolumes(t *testing.T) {
	fd, dir := filesystem(t)
	r := btrfs.NewRequest(0)
	defer r.Close()
	must(t, r.Create(fd, "a-long-name-that-leaves-nothing-behind"))
	must(t, r.Create(fd, "a"))
	a := open(t, filepath.Join(dir, "a"))
	must(t, os.WriteFile(filepath.Join(dir, "a/f"), []byte("x"), 0o644))
	must(t, r.Snapshot(a, fd, "ro", true))
	must(t, r.Snapshot(a, fd, "rw", false))
	if err := os.WriteFile(filepath.Join(dir, "ro/f"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write to a read-only snapshot: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "rw/f"), []byte("y"), 0o644))
	if b, err := os.ReadFile(filepath.Join(dir, "a/f")); err != nil || string(b) != "x" {
		t.Errorf("a write to a snapshot reached its origin: %q %v", b, err)
	}
	ro, err := btrfs.SubvolumeInfo(open(t, filepath.Join(dir, "ro")))
	must(t, err)
	rw, err := btrfs.SubvolumeInfo(open(t, filepath.Join(dir, "rw")))
	must(t, err)
	if !ro.ReadOnly || rw.ReadOnly || ro.ID == rw.ID {
		t.Errorf("read-only snapshot %+v, writable %+v", ro, rw)
	}
	for _, name := range []string{"", "..", "a/b", "a\x00b", string(bytes.Repeat([]byte("n"), 256))} {
		if err := r.Create(fd, name); !errors.Is(err, unix.EINVAL) {
			t.Errorf("name %q: %v", name, err)
		}
		if err := btrfs.Destroy(fd, name); !errors.Is(err, unix.EINVAL) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := r.Create(fd, "a"); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a name twice: %v", err)
	}
	must(t, btrfs.Destroy(fd, "ro"))
	if _, err := os.Stat(filepath.Join(dir, "ro")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it was destroyed: %v", err)
	}
}

func TestCleanerIsSeen(t *testing.T) {
	fd, dir := filesystem(t)
	r := btrfs.NewRequest(0)
	defer r.Close()
	must(t, r.Create(fd, "a"))
	a, err := unix.Open(filepath.Join(dir, "a"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	info, err := btrfs.SubvolumeInfo(a)
	unix.Close(a)
	must(t, err)
	must(t, btrfs.Sync(fd))
	if there, err := btrfs.Exists(fd, info.ID); err != nil || !there {
		t.Fatalf("a subvolume: %v %v", there, err)
	}
	must(t, btrfs.Destroy(fd, "a"))
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		must(t, btrfs.Sync(fd))
		there, err := btrfs.Exists(fd, info.ID)
		must(t, err)
		if !there {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the cleaner does not drop it")
		}
	}
}

func TestSameExtents(t *testing.T) {
	fd, dir := filesystem(t)
	r := btrfs.NewRequest(0)
	defer r.Close()
	must(t, r.Create(fd, "a"))
	a := open(t, filepath.Join(dir, "a"))
	files := map[string][]byte{
		"empty": nil, "inline": []byte("small"), "large": bytes.Repeat([]byte("0123456789abcdef"), 64<<10),
	}
	for name, b := range files {
		must(t, os.WriteFile(filepath.Join(dir, "a", name), b, 0o644))
	}
	// More extents than one answer of the kernel holds.
	f, err := os.Create(filepath.Join(dir, "a/many"))
	must(t, err)
	defer f.Close()
	for i := range 1500 {
		_, err := f.WriteAt([]byte("x"), int64(i)*8192)
		must(t, err)
	}
	must(t, btrfs.Sync(fd))
	must(t, r.Snapshot(a, fd, "b", false))
	b := open(t, filepath.Join(dir, "b"))
	same := func(name string) bool {
		t.Helper()
		must(t, btrfs.Sync(fd))
		var x, y unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, "a", name), &x))
		must(t, unix.Stat(filepath.Join(dir, "b", name), &y))
		got, err := btrfs.SameExtents(a, x.Ino, b, y.Ino)
		must(t, err)
		return got
	}
	for _, name := range []string{"empty", "inline", "large", "many"} {
		if !same(name) {
			t.Errorf("%s is not the same in a snapshot", name)
		}
	}
	change := func(name string, at int64) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "b", name), os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("y"), at)
		must(t, errors.Join(err, f.Close()))
	}
	change("empty", 0)
	change("inline", 2)
	change("large", 500_000)
	change("many", 1499*8192)
	for _, name := range []string{"empty", "inline", "large", "many"} {
		if same(name) {
			t.Errorf("%s is the same after a change", name)
		}
	}
}

func TestQuota(t *testing.T) {
	fd, dir := filesystem(t)
	err := btrfs.EnableSimpleQuota(fd)
	if errors.Is(err, unix.EINVAL) {
		t.Skip("simple quotas came with Linux 6.7")
	}
	must(t, err)
	must(t, btrfs.EnableSimpleQuota(fd)) // twice does no harm
	id, err := btrfs.FSID(fd)
	must(t, err)
	q := btrfs.Level1(5)
	must(t, btrfs.CreateQgroup(fd, q))
	must(t, btrfs.LimitQgroup(fd, q, 1<<20))
	r := btrfs.NewRequest(q)
	defer r.Close()
	must(t, r.Create(fd, "a"))
	err = os.WriteFile(filepath.Join(dir, "a/f"), make([]byte, 4<<20), 0o644)
	if !errors.Is(err, unix.EDQUOT) {
		t.Errorf("4 MiB under a limit of 1: %v", err)
	}
	must(t, btrfs.LimitQgroup(fd, q, 0))
	must(t, os.WriteFile(filepath.Join(dir, "a/f"), make([]byte, 4<<20), 0o644))
	must(t, btrfs.Sync(fd))
	used, limit, err := btrfs.QgroupUsage(id, q)
	if err != nil || used < 4<<20 || limit != 0 {
		t.Errorf("usage %d of %d, %v", used, limit, err)
	}
	if err := btrfs.RemoveQgroup(fd, q); !errors.Is(err, unix.EBUSY) {
		t.Errorf("remove a group with members: %v", err)
	}
	if _, _, err := btrfs.QgroupUsage(id, btrfs.Level1(6)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("usage of no group: %v", err)
	}
	// A subvolume that was made outside joins later.
	none := btrfs.NewRequest(0)
	defer none.Close()
	must(t, none.Create(fd, "b"))
	info, err := btrfs.SubvolumeInfo(open(t, filepath.Join(dir, "b")))
	must(t, err)
	must(t, btrfs.AssignQgroup(fd, btrfs.QgroupID(info.ID), q))
}

func TestElsewhere(t *testing.T) {
	fd := open(t, "/dev/shm")
	if ok, err := btrfs.IsFilesystem(fd); ok || err != nil {
		t.Errorf("a tmpfs: %v %v", ok, err)
	}
	r := btrfs.NewRequest(0)
	defer r.Close()
	var e *btrfs.Error
	if err := r.Create(fd, "a"); !errors.Is(err, unix.ENOTTY) || !errors.As(err, &e) || e.Call != "BTRFS_IOC_SUBVOL_CREATE_V2" {
		t.Errorf("create a subvolume on a tmpfs: %v", err)
	}
}
