// Package rootfstest holds every implementation of rootfs.Store to its
// contract, on the real thing: mounts, open files and mappings.
//
// A test of an implementation is one call of [Run].
package rootfstest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// Harness says how to test an implementation.
type Harness struct {
	// Image packs a directory into an EROFS image.
	Image func(ctx context.Context, dir, image string) error
	// Setup makes a place for one test's store, and returns how to open the
	// store there. Called again after the store was closed, it opens the same
	// one. Setup registers the cleanup of the place.
	Setup func(t *testing.T) func(layers []string) (rootfs.Store, error)
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	layers := mountLayers(t, h)
	for _, c := range []struct {
		name string
		f    func(*env)
	}{
		{"Lifecycle", lifecycle},
		{"Errors", faults},
		{"RootAttributes", rootAttributes},
		{"OpenFiles", openFiles},
		{"Mappings", mappings},
		{"Unlinked", unlinked},
		{"HardLinks", hardLinks},
		{"Renames", renames},
		{"Whiteouts", whiteouts},
		{"Journal", journal},
		{"Immutable", immutable},
		{"ClonesApart", clonesApart},
		{"Concurrent", concurrent},
		{"ManySnapshots", manySnapshots},
		{"Quota", quota},
		{"Discount", discount},
		{"Recount", recount},
		{"StillOpen", stillOpen},
		{"Reopen", reopen},
		{"Hold", hold},
		{"Resolve", resolve},
		{"Handles", handles},
		{"MountsOfFiles", mountsOfFiles},
		{"Diff", diff},
		{"DiffRandom", diffRandom},
		{"DiffDeep", diffDeep},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := Before(t)
			// Registered first, so looked at when all else is cleaned up.
			t.Cleanup(func() { before.Check(t) })
			e := &env{t: t, open: h.Setup(t), layers: layers}
			e.start()
			t.Cleanup(e.stop)
			c.f(e)
		})
	}
}

// env is one test's store and what the test has mounted in it.
type env struct {
	t      *testing.T
	open   func(layers []string) (rootfs.Store, error)
	layers []string
	s      rootfs.Store
}

func (e *env) start() {
	e.t.Helper()
	s, err := e.open(e.layers)
	if err != nil {
		e.t.Fatal(err)
	}
	e.s = s
}

func (e *env) stop() {
	e.t.Helper()
	if err := e.s.Close(); err != nil {
		e.t.Errorf("close the store: %v", err)
	}
}

// must fails the test on an error.
func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// upper makes an upper and mounts it.
func (e *env) upper(id string) Root {
	e.t.Helper()
	e.must(e.s.CreateUpper(id, 0))
	return e.mount(id)
}

// clone makes an upper of a snapshot and mounts it.
func (e *env) clone(snapshot, id string) Root {
	e.t.Helper()
	e.must(e.s.Clone(snapshot, id, 0))
	return e.mount(id)
}

// mount mounts an upper until the end of the test.
func (e *env) mount(id string) Root {
	e.t.Helper()
	fd, err := e.s.MountRoot(id)
	e.must(err)
	r := NewRoot(e.t, fd)
	e.t.Cleanup(r.Close)
	return r
}

// eventually waits for what background work brings about.
func (e *env) eventually(what string, f func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// mountLayers makes the layers that all tests use, the topmost first.
func mountLayers(t *testing.T, h Harness) []string {
	t.Helper()
	dir := t.TempDir()
	var points []string
	for i, fill := range []func(dir string) error{topLayer, baseLayer} {
		name := filepath.Join(dir, []string{"top", "base"}[i])
		if err := os.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := fill(name); err != nil {
			t.Fatal(err)
		}
		if err := h.Image(t.Context(), name, name+".erofs"); err != nil {
			t.Fatal(err)
		}
		at := name + ".mnt"
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := rootfs.MountLayer(name+".erofs", at); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := mount.Unmount(at); err != nil {
				t.Errorf("a layer is still in use: %v", err)
			}
		})
		points = append(points, at)
	}
	return points
}

// tree is a small language for layers: what stands at each path.
type tree []struct {
	path, content string
	mode          uint32 // 0: a regular file of 0644
	uid           int
}

func (l tree) write(dir string) error {
	for _, f := range l {
		p := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		var err error
		switch f.mode & unix.S_IFMT {
		case unix.S_IFDIR:
			err = os.MkdirAll(p, 0o755)
		case unix.S_IFLNK:
			err = os.Symlink(f.content, p)
		case unix.S_IFCHR: // a whiteout
			err = unix.Mknod(p, f.mode, 0)
		default:
			err = os.WriteFile(p, []byte(f.content), 0o644)
		}
		if err == nil && f.uid != 0 {
			err = os.Lchown(p, f.uid, f.uid)
		}
		if err == nil && f.mode&0o7777 != 0 && f.mode&unix.S_IFMT != unix.S_IFCHR {
			err = unix.Chmod(p, f.mode&0o7777)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func baseLayer(dir string) error {
	err := tree{
		{path: "etc/passwd", content: "root:x:0:0\n"},
		{path: "etc/motd", content: "base"},
		{path: "bin/tool", content: "#!", mode: 0o4755},
		{path: "lib/big.so", content: string(make([]byte, 64<<10)) + "end"},
		{path: "usr/share/doc/a", content: "doc a"},
		{path: "usr/share/doc/b", content: "doc b"},
		{path: "data/deep/er/leaf", content: "leaf"},
		{path: "data/deep/er/sub/twig", content: "twig"},
		{path: "hard1", content: "linked"},
		{path: "hidden", content: "covered by a whiteout"},
		{path: "opaque/old", content: "covered by an opaque directory"},
		{path: "opaque/dir/old", content: "so is this"},
		{path: "owned", content: "of a user", uid: 1000, mode: 0o640},
		{path: "link", content: "etc/passwd", mode: unix.S_IFLNK},
		{path: "tmp", mode: unix.S_IFDIR | 0o1777},
	}.write(dir)
	if err != nil {
		return err
	}
	return os.Link(filepath.Join(dir, "hard1"), filepath.Join(dir, "hard2"))
}

func topLayer(dir string) error {
	err := tree{
		{path: "etc/motd", content: "top"},
		{path: "hidden", mode: unix.S_IFCHR},
		{path: "opaque/new", content: "new"},
		{path: "usr/share/doc/c", content: "doc c"},
	}.write(dir)
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o751); err != nil {
		return err
	}
	return unix.Setxattr(filepath.Join(dir, "opaque"), "trusted.overlay.opaque", []byte("y"), 0)
}
