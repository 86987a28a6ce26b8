package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/linux/statdev"
	"github.com/sandtree/sandtree/internal/linux/statdev/statdevtest"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/testrootfs"
	"github.com/sandtree/sandtree/internal/tracee"
)

// base is where the ids of these tests begin, far from a daemon's.
const base = 0x70000000

var idmap = confine.IDMap{Host: base}

// family is what the tests share: a seed, a cgroup and an unpacked root.
type family struct {
	seed    *sandbox.Seed
	devices *statdev.Table
	parent  *cgroup.Parent
	walls   *confine.Walls
	lower   int // the root, ids mapped
	userns  int
	dir     string
	groups  atomic.Int64
}

var shared struct {
	once sync.Once
	f    *family
	undo []func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	for n := len(shared.undo) - 1; n >= 0; n-- {
		shared.undo[n]()
	}
	os.Exit(code)
}

// home returns the tests' family; a test that cannot have it fails.
func home(t testing.TB) *family {
	t.Helper()
	shared.once.Do(func() { shared.f = newFamily(t) })
	if shared.f == nil {
		t.Fatal("the family of these tests was not made")
	}
	return shared.f
}

func newFamily(t testing.TB) *family {
	t.Helper()
	undo := func(f func()) { shared.undo = append(shared.undo, f) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "sandbox")
	check(err)
	undo(func() { os.RemoveAll(dir) })
	lower := filepath.Join(dir, "lower")
	check(os.Mkdir(lower, 0o755))
	if out, err := exec.Command("tar", "-xpf", testrootfs.Path(t), "--numeric-owner", "-C", lower).CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	if c, err := cgroup.FavorDynamicMoves(); err == nil {
		undo(func() { c.Close() })
	}
	layout, err := cgroup.Detect()
	check(err)
	f := &family{dir: dir}
	f.walls, err = confine.New(confine.Policy{})
	check(err)
	f.parent, err = layout.OpenParent(fmt.Sprintf("sandboxtest%d", os.Getpid()))
	check(err)
	undo(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = f.parent.Remove(ctx)
	})
	program, err := tracee.NewProgram()
	check(err)
	defer program.Close()
	f.devices = statdevtest.Open(t, base)
	undo(f.devices.Close)
	f.seed, err = sandbox.NewSeed(program, idmap, f.devices)
	check(err)
	undo(func() { f.seed.Close() })
	f.userns, err = f.seed.NewUserns(idmap)
	check(err)
	undo(func() { unix.Close(f.userns) })
	f.lower, err = mount.CloneMapped(unix.AT_FDCWD, lower, f.userns, 0)
	check(err)
	undo(func() { unix.Close(f.lower) })
	// Before Linux 6.15 overlayfs takes no mount that has no place.
	mapped := filepath.Join(dir, "mapped")
	check(os.Mkdir(mapped, 0o755))
	check(mount.Attach(f.lower, mapped))
	undo(func() { _ = mount.Detach(mapped) })
	return f
}

// root makes an overlay of the family's root with an upper in memory.
func (f *family) root(t testing.TB) int {
	t.Helper()
	tmp, err := mount.New("tmpfs").Set("size", "256m").Mount(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tmp)
	at, err := os.MkdirTemp(f.dir, "upper")
	if err != nil {
		t.Fatal(err)
	}
	if err := mount.Attach(tmp, at); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(mount.Detach(at), os.Remove(at)); err != nil {
			t.Error(err)
		}
	}()
	fs := mount.New("overlay").Set("lowerdir+", filepath.Join(f.dir, "mapped"))
	for _, d := range []string{"upper", "work"} {
		if err := unix.Mkdirat(tmp, d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fchownat(tmp, d, base, base, 0); err != nil {
			t.Fatal(err)
		}
		fs.Set(d+"dir", filepath.Join(at, d))
	}
	fd, err := fs.Mount(0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func (f *family) group(t testing.TB, l cgroup.Limits) *cgroup.Group {
	t.Helper()
	g, err := f.parent.NewGroup(fmt.Sprint("g", f.groups.Add(1)), l)
	if fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// boot makes an incarnation that ends with the test.
func boot(t testing.TB, change ...func(*sandbox.Spec)) *sandbox.Incarnation {
	t.Helper()
	f := home(t)
	spec := sandbox.Spec{Root: f.root(t), Hostname: "box", Cgroup: f.group(t, cgroup.Limits{}), Walls: f.walls}
	for _, c := range change {
		c(&spec)
	}
	i, err := f.seed.Boot(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, i) })
	return i
}

func end(t testing.TB, i *sandbox.Incarnation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the kernel takes seconds where many namespaces end at once
	defer cancel()
	if err := i.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}
