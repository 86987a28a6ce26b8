package statdev_test

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/linux/statdev"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func attach(t testing.TB) *statdev.Attachment {
	t.Helper()
	featuretest.Need(t, "device numbers")
	a, err := statdev.Attach()
	check(t, err)
	t.Cleanup(a.Close)
	return a
}

// open opens a family's table, as a supervisor does that was given descriptors.
func open(t testing.TB, a *statdev.Attachment, base uint32) *statdev.Table {
	t.Helper()
	var fds []int
	for _, f := range a.Files() {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		check(t, err)
		fds = append(fds, fd)
	}
	table, err := statdev.OpenTable(fds, base)
	check(t, err)
	t.Cleanup(table.Close)
	return table
}

// fileSystem mounts one, that everybody may look into, and tells its device.
func fileSystem(t testing.TB) (dir string, device uint64) {
	t.Helper()
	fd, err := mount.New("tmpfs").Set("mode", "755").Mount(0)
	check(t, err)
	defer unix.Close(fd)
	dir, err = os.MkdirTemp("", "statdev")
	check(t, err)
	t.Cleanup(func() { _ = os.Remove(dir) })
	check(t, os.Chmod(dir, 0o755))
	check(t, unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var st unix.Stat_t
	check(t, unix.Stat(dir, &st))
	return dir, st.Dev
}

// sees checks what a user is told, by every call.
func sees(t testing.TB, user uint32, dir string, want uint64) {
	t.Helper()
	for call, got := range askAs(t, user, dir) {
		if got != want {
			t.Errorf("user %#x is told %#x by %s, not %#x", user, got, call, want)
		}
	}
}

// shown is the device that is shown for a number.
func shown(number int) uint64 { return unix.Mkdev(0, uint32(0xff000+number)) }

const other = base + 1<<16 // of another family

func TestNumbersAreShown(t *testing.T) {
	a := attach(t)
	table := open(t, a, base)
	one, d1 := fileSystem(t)
	two, d2 := fileSystem(t)
	var c statdev.Claim
	check(t, table.Claim(&c, d1, 5))
	check(t, table.Claim(&c, d2, 0x123))
	check(t, table.Claim(&c, d1, 6)) // another mount of it
	sees(t, base, one, shown(5))
	sees(t, base+0xffff, one, shown(5))
	sees(t, base+7, two, shown(0x123))
	sees(t, 0, one, d1)
	sees(t, 0x1fffffff, one, d1)
	sees(t, other, one, d1)
	check(t, c.Release())
	sees(t, base, one, d1)
	check(t, c.Release()) // again is nothing
}

// A descriptor elsewhere keeps all alive, and without one nothing is left.
func TestDescriptorsKeepIt(t *testing.T) {
	a := attach(t)
	table := open(t, a, base)
	dir, device := fileSystem(t)
	var c statdev.Claim
	check(t, table.Claim(&c, device, 1))
	a.Close()
	sees(t, base, dir, shown(1))
	table.Close()
	sees(t, base, dir, device)
}

// Several bodies share a device, as that of the cgroups; and a device is given
// again before the claim of its earlier mount has ended.
func TestClaims(t *testing.T) {
	a := attach(t)
	table := open(t, a, base)
	dir, device := fileSystem(t)
	var first, second, third statdev.Claim
	check(t, table.Claim(&first, device, 1))
	check(t, table.Claim(&second, device, 1))
	check(t, first.Release())
	sees(t, base, dir, shown(1))
	check(t, table.Claim(&third, device, 2))
	sees(t, base, dir, shown(2))
	check(t, second.Release()) // void by now
	sees(t, base, dir, shown(2))
	check(t, third.Release())
	sees(t, base, dir, device)
}

// A killed supervisor leaves its claims, and other families keep theirs.
func TestForget(t *testing.T) {
	a := attach(t)
	dir, device := fileSystem(t)
	killed, lives := open(t, a, base), open(t, a, other)
	var lost, kept statdev.Claim
	for i := range 100 {
		check(t, killed.Claim(&lost, uint64(i), i))
	}
	check(t, killed.Claim(&lost, device, 1))
	check(t, lives.Claim(&kept, device, 2))
	check(t, a.Forget(base))
	sees(t, base, dir, device)
	sees(t, other, dir, shown(2))
	next := open(t, a, base)
	var c statdev.Claim
	check(t, next.Claim(&c, device, 3))
	sees(t, base, dir, shown(3))
}

// Two daemons on one machine: what one shows is nothing to the other.
func TestTwoAttachments(t *testing.T) {
	dir, device := fileSystem(t)
	var claims [2]statdev.Claim
	for i, users := range []uint32{base, other} {
		check(t, open(t, attach(t), users).Claim(&claims[i], device, i))
	}
	sees(t, base, dir, shown(0))
	sees(t, other, dir, shown(1))
	check(t, claims[0].Release())
	sees(t, base, dir, device)
	sees(t, other, dir, shown(1))
}

func TestWithoutAttachment(t *testing.T) {
	var (
		table *statdev.Table
		c     statdev.Claim
	)
	check(t, table.Claim(&c, 57, 1))
	check(t, c.Release())
	table.Close()
}

func TestWrongDescriptors(t *testing.T) {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	for _, tt := range []struct {
		fds  []int
		base uint32
	}{{nil, base}, {[]int{null}, base}} {
		if _, err := statdev.OpenTable(slices.Clone(tt.fds), tt.base); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", tt, err)
		}
	}
}
