package upper_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/upper"
	"github.com/sandtree/sandtree/internal/durable/uppertest"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kept is a store of chunks in memory.
type kept struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	put    int64
}

func newKept() *kept { return &kept{chunks: map[chunk.ID][]byte{}} }

func (k *kept) Put(b []byte) (chunk.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := chunk.Sum(b)
	if k.chunks[id] == nil {
		k.put += int64(len(b))
		k.chunks[id] = bytes.Clone(b)
	}
	return id, nil
}

func (k *kept) Reuse(id chunk.ID) error {
	_, err := k.Append(nil, id)
	return err
}

func (k *kept) Append(dst []byte, id chunk.ID) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chunks[id] == nil {
		return dst, fmt.Errorf("chunk %s is not there", id)
	}
	return append(dst, k.chunks[id]...), nil
}

func openDir(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func capture(t testing.TB, k *kept, parent *upper.Manifest, dir string) (upper.Manifest, int64) {
	t.Helper()
	m, read, err := upper.Capture(t.Context(), k, k, parent, openDir(t, dir))
	must(t, err)
	return m, read
}

// same restores a manifest into a new directory at a place and compares.
func same(t testing.TB, k *kept, m *upper.Manifest, want, at string) {
	t.Helper()
	to := filepath.Join(at, fmt.Sprintf("restored%d", rand.Uint32()))
	must(t, os.Mkdir(to, 0o700))
	must(t, m.Restore(t.Context(), k, openDir(t, to)))
	uppertest.Same(t, want, to)
	entries, n, err := m.Measure(k)
	if err != nil || entries != m.Entries || n != m.Bytes {
		t.Errorf("%d entries, %d bytes, %v; it says %d and %d", entries, n, err, m.Entries, m.Bytes)
	}
	must(t, os.RemoveAll(to))
}

// btrfsDir is a directory on a btrfs.
func btrfsDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "pool")
	must(t, os.Mkdir(at, 0o755))
	p, err := pool.Open(context.Background(), pool.Config{Path: filepath.Join(dir, "img"), MountPoint: at, Initial: 512 << 20, Log: slog.Default()})
	must(t, err)
	t.Cleanup(func() { must(t, p.Destroy()) })
	return at
}

// everything makes files of all kinds, as they are in uppers.
func everything(t testing.TB, dir string) {
	t.Helper()
	in := func(s string) string { return filepath.Join(dir, s) }
	must(t, os.Mkdir(in("d"), 0o1777))
	must(t, os.Mkdir(in("d/sub"), 0o700))
	must(t, os.WriteFile(in("empty"), nil, 0o644))
	must(t, os.WriteFile(in("small"), []byte("small"), 0o4755))
	must(t, os.WriteFile(in("d/large"), bytes.Repeat([]byte("0123456789abcdef"), 60_000), 0o600))
	must(t, os.WriteFile(in("d/zeros"), make([]byte, 300_000), 0o600))
	must(t, os.WriteFile(in("name \xff\n\\"), []byte{0}, 0o644))
	must(t, os.WriteFile(in(strings.Repeat("n", 255)), []byte("long name"), 0o644))
	sparse, err := os.Create(in("sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("in the middle"), 5<<20)
	must(t, err)
	must(t, sparse.Truncate(1<<40))
	_, err = sparse.WriteAt(make([]byte, 10), 1<<39)
	must(t, err)
	must(t, sparse.Close())
	hole, err := os.Create(in("hole"))
	must(t, err)
	must(t, hole.Truncate(100))
	must(t, hole.Close())
	must(t, os.Symlink(strings.Repeat("../", 300)+"\xfe", in("d/link")))
	must(t, os.Link(in("small"), in("d/sub/again")))
	must(t, os.Link(in("small"), in("zz")))
	must(t, os.Symlink("x", in("d/link2")))
	must(t, os.Link(in("d/link2"), in("link3")))
	must(t, unix.Mknod(in("whiteout"), unix.S_IFCHR, 0))
	must(t, os.Link(in("whiteout"), in("d/whiteout2")))
	must(t, unix.Mknod(in("dev"), unix.S_IFBLK|0o660, int(unix.Mkdev(300, 70000))))
	must(t, unix.Mkfifo(in("d/fifo"), 0o640))
	must(t, unix.Mknod(in("socket"), unix.S_IFSOCK|0o755, 0))
	must(t, os.Lchown(in("small"), 65535, 1234))
	must(t, os.Chmod(in("small"), 0o755|os.ModeSetuid|os.ModeSetgid))
	must(t, os.Lchown(in("d/link"), 7, 8))
	must(t, os.Lchown(in("d"), 33, 33))
	must(t, unix.Setxattr(in("d"), "trusted.overlay.opaque", []byte("y"), 0))
	must(t, unix.Setxattr(in("d/sub"), "trusted.overlay.redirect", []byte("/was/elsewhere"), 0))
	must(t, unix.Setxattr(in("d/large"), "user.note", nil, 0))
	must(t, unix.Lsetxattr(in("d/link"), "trusted.x", []byte("of a link"), 0))
	must(t, unix.Setxattr(in("small"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	times := []unix.Timespec{{Sec: 1, Nsec: 999_999_999}, {Sec: 4_000_000_000, Nsec: 123_456_789}}
	for _, n := range []string{"empty", "d/link", "whiteout", "d/sub", "."} {
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(n), times, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func TestEverythingComesBack(t *testing.T) {
	// Without times of access that change when a link is read.
	other := t.TempDir()
	fd, err := mount.New("tmpfs").Set("size", "64M").Mount(unix.MOUNT_ATTR_NOATIME)
	must(t, err)
	must(t, mount.Attach(fd, other))
	must(t, unix.Close(fd))
	defer func() { must(t, mount.Unmount(other)) }()
	for name, at := range map[string]string{"btrfs": btrfsDir(t), "other": other} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(at, "u")
			must(t, os.Mkdir(dir, 0o750))
			everything(t, dir)
			if name == "btrfs" {
				for i := range 30 {
					must(t, unix.Setxattr(filepath.Join(dir, "d/zeros"), fmt.Sprintf("user.%d", i), bytes.Repeat([]byte{byte(i)}, 3000), 0))
				}
			}
			k := newKept()
			m, _ := capture(t, k, nil, dir)
			same(t, k, &m, dir, at)
			again, _ := capture(t, k, &m, dir)
			same(t, k, &again, dir, at)
			// What is not empty is left alone.
			if err := m.Restore(t.Context(), k, openDir(t, dir)); err == nil {
				t.Error("restored into what is not empty")
			}
		})
	}
}

// TestDeep restores a tree that is deeper than a path, and than a process may
// have files open.
func TestDeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "u")
	must(t, os.Mkdir(dir, 0o755))
	const depth = 500
	at := openDir(t, dir)
	for i := range depth {
		must(t, unix.Mkdirat(at, "directory", 0o755))
		next, err := unix.Openat(at, "directory", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		if i > 0 {
			unix.Close(at)
		}
		at = next
		for _, n := range []string{"a", "z"} {
			fd, err := unix.Openat(at, n, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			must(t, err)
			_, err = unix.Write(fd, []byte(n))
			must(t, err)
			unix.Close(fd)
		}
		if i == depth-1 {
			must(t, unix.Linkat(at, "a", openDir(t, dir), "zz", 0)) // restored from the first name, deep below
		}
	}
	unix.Close(at)
	k := newKept()
	m, _ := capture(t, k, nil, dir)
	if m.Entries != 3*depth+2 {
		t.Errorf("%d entries", m.Entries)
	}
	to := filepath.Join(t.TempDir(), "r")
	must(t, os.Mkdir(to, 0o755))
	must(t, m.Restore(t.Context(), k, openDir(t, to)))
	again, _ := capture(t, k, nil, to)
	if again.Entries != m.Entries || again.Bytes != m.Bytes {
		t.Errorf("%d entries with %d bytes became %d with %d", m.Entries, m.Bytes, again.Entries, again.Bytes)
	}
}

// change is a way in which a file's content changes.
var changes = map[string]func(t testing.TB, path string){
	"write": func(t testing.TB, path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("changed"), 70_000)
		must(t, err)
		must(t, f.Close())
	},
	"mmap": func(t testing.TB, path string) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(t, err)
		b[9]++
		must(t, unix.Munmap(b))
		must(t, f.Close())
	},
	"punch": func(t testing.TB, path string) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8192, 8192))
		must(t, f.Close())
	},
	"replace": func(t testing.TB, path string) {
		must(t, os.WriteFile(path+".new", bytes.Repeat([]byte("new"), 40_000), 0o600))
		must(t, os.Rename(path+".new", path))
	},
	"write and back to the old time": func(t testing.TB, path string) {
		var st unix.Stat_t
		must(t, unix.Stat(path, &st))
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt([]byte("stealth"), 5)
		must(t, err)
		must(t, f.Close())
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, 0))
	},
	"into what was allocated": func(t testing.TB, path string) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), 0, 0, 400_000))
		_, err = f.WriteAt([]byte("there"), 300_000)
		must(t, err)
		must(t, f.Close())
	},
	"clone": func(t testing.TB, path string) {
		from, err := os.Open(filepath.Join(filepath.Dir(path), "source"))
		must(t, err)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		must(t, unix.IoctlFileCloneRange(int(f.Fd()), &unix.FileCloneRange{Src_fd: int64(from.Fd()), Src_length: 65536}))
		must(t, f.Close())
		must(t, from.Close())
	},
}

// TestUnchangedIsNotRead changes files in all ways between snapshots, keeping a
// mapping of one all the time: what did not change is not read, and what did is.
func TestUnchangedIsNotRead(t *testing.T) {
	at := btrfsDir(t)
	pool := openDir(t, at)
	r := btrfs.NewRequest(0)
	defer r.Close()
	must(t, r.Create(pool, "live"))
	live := filepath.Join(at, "live")
	defer func() { must(t, btrfs.Destroy(pool, "live")) }()
	fd := openDir(t, live)
	names := []string{"source"}
	for i := range 50 {
		names = append(names, fmt.Sprintf("f%d", i))
	}
	for way := range changes {
		names = append(names, way, way+" without copy-on-write")
	}
	for i, n := range names {
		path := filepath.Join(live, n)
		f, err := os.Create(path)
		must(t, err)
		if strings.HasSuffix(n, "without copy-on-write") {
			const noCOW = 0x00800000 // FS_NOCOW_FL, ioctl_iflags(2)
			must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, noCOW))
		}
		_, err = f.Write(bytes.Repeat([]byte{byte(i), 1, 2, 3, 4, 5, 6, byte(i)}, 15_000))
		must(t, err)
		must(t, f.Close())
	}
	in := func(n string) string { return filepath.Join(live, n) }
	must(t, os.WriteFile(in("tiny"), []byte("inline"), 0o600))
	must(t, os.Mkdir(in("dir"), 0o755))
	must(t, os.Mkdir(in("dir/still"), 0o755))
	must(t, os.Symlink("one", in("dir/link")))
	must(t, os.Link(in("f20"), in("dir/still/second name")))
	must(t, os.Link(in("f21"), in("dir/still/a name that goes")))
	must(t, unix.Setxattr(in("f22"), "user.a", []byte("0"), 0))
	// A mapping that stays, and that is written to between the snapshots.
	f, err := os.OpenFile(filepath.Join(live, "f7"), os.O_RDWR, 0)
	must(t, err)
	mapped, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(mapped)) }()
	must(t, f.Close())
	k := newKept()
	var parent *upper.Manifest
	for round := range 4 {
		name := fmt.Sprintf("s%d", round)
		changed := int64(0)
		switch round {
		case 1: // nothing
		case 2, 3:
			for way, change := range changes {
				for _, n := range []string{way, way + " without copy-on-write"} {
					if way == "clone" && n != way {
						continue // only between files of a kind
					}
					change(t, filepath.Join(live, n))
					changed++
				}
			}
			mapped[5000]++
			// Attributes and names: none of it is a change of content.
			must(t, os.Chmod(in("f10"), os.FileMode(0o600+round)))
			must(t, os.Lchown(in("f11"), round, 5))
			must(t, unix.Setxattr(in("f22"), "user.a", fmt.Append(nil, round), 0))
			must(t, unix.UtimesNanoAt(unix.AT_FDCWD, in("f12"), []unix.Timespec{{Sec: int64(round)}, {Sec: 7}}, 0))
			must(t, os.Remove(in("dir/link")))
			must(t, os.Symlink(fmt.Sprint("another", round), in("dir/link")))
			must(t, os.Link(in("f20"), in(fmt.Sprint("dir/still/name", round))))
			must(t, os.Chmod(in("dir/still"), os.FileMode(0o700+round)))
			if round == 2 {
				must(t, os.Remove(in("dir/still/a name that goes")))
				must(t, os.Remove(in("f30")))
				must(t, os.Rename(in("f31"), in("f32")))
			}
			must(t, os.WriteFile(filepath.Join(live, "tiny"), []byte(fmt.Sprint("inline", round)), 0o600))
			must(t, os.Rename(filepath.Join(live, fmt.Sprintf("f%d", round)), filepath.Join(live, fmt.Sprintf("moved%d", round))))
		}
		must(t, r.Snapshot(fd, pool, name, true))
		defer func() { must(t, btrfs.Destroy(pool, name)) }()
		snapshot := filepath.Join(at, name)
		m, read := capture(t, k, parent, snapshot)
		switch round {
		case 0:
			if read < 5_000_000 {
				t.Errorf("at first %d bytes are read", read)
			}
		case 1:
			if read != 0 {
				t.Errorf("nothing changed, and %d bytes are read", read)
			}
		default:
			if limit := (changed + 2) * 410_000; read == 0 || read > limit {
				t.Errorf("%d files changed, and %d bytes are read", changed, read)
			}
		}
		same(t, k, &m, snapshot, at)
		parent = &m
	}
	// One of another file system is not taken for a parent.
	other := *parent
	other.Source.Boot = "another"
	if _, read := capture(t, k, &other, filepath.Join(at, "s3")); read < 5_000_000 {
		t.Errorf("%d bytes are read", read)
	}
}
