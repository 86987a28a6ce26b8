package sandbox_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/rootfs/overlay"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// newStore makes a store as a daemon has it: one EROFS layer, a btrfs pool.
func newStore(t *testing.T, f *family) rootfs.Store {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"pool", "layer", "attach"} {
		check(os.Mkdir(path(d), 0o755))
	}
	tree, err := erofs.Scan(t.Context(), filepath.Join(f.dir, "lower"))
	check(err)
	defer tree.Close()
	image, err := os.Create(path("layer.erofs"))
	check(err)
	_, err = erofs.Write(t.Context(), image, &tree.Tree)
	check(errors.Join(err, image.Close()))
	fd, err := mount.New("erofs").Set("source", path("layer.erofs")).Mount(unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV)
	check(err)
	check(mount.Attach(fd, path("layer")))
	unix.Close(fd)
	t.Cleanup(func() {
		if err := mount.Unmount(path("layer")); err != nil {
			t.Error(err)
		}
	})
	p, err := pool.Open(t.Context(), pool.Config{
		Path: path("pool.img"), MountPoint: path("pool"), Initial: 512 << 20, Step: 256 << 20, HostReserve: 1,
	})
	check(err)
	t.Cleanup(func() {
		if err := p.Destroy(); err != nil {
			t.Error(err)
		}
	})
	s, err := overlay.Open(overlay.Config{
		Pool: path("pool"), Layers: []string{path("layer")}, UserNS: f.userns, Attach: path("attach"), Log: slog.New(slog.DiscardHandler),
	})
	check(err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// An incarnation lives in a real root, and its successor finds the files of a
// snapshot.
func TestLivesInRootOfStore(t *testing.T) {
	f := home(t)
	s := newStore(t, f)
	in := func(upper string) *sandbox.Incarnation {
		root, err := s.MountRoot(upper)
		if err != nil {
			t.Fatal(err)
		}
		return boot(t, func(spec *sandbox.Spec) { unix.Close(spec.Root); spec.Root = root })
	}
	if err := s.CreateUpper("a.0", 0); err != nil {
		t.Fatal(err)
	}
	a := in("a.0")
	if out, code := sh(t, a, "set -e; useradd -m alice 2>/dev/null || adduser --disabled-password alice; echo one >/home/alice/f; chown alice /home/alice/f; rm /etc/issue; ln -s f /home/alice/l"); code != 0 {
		t.Fatal(out)
	}
	if err := s.Snapshot("a.0", "cp"); err != nil {
		t.Fatal(err)
	}
	sh(t, a, "echo two >/home/alice/f")
	if err := s.Clone("cp", "a.1", 0); err != nil {
		t.Fatal(err)
	}
	b := in("a.1")
	u, err := b.LookupUser("alice")
	if err != nil || u.Home != "/home/alice" || u.UID < 1000 {
		t.Fatalf("%+v, %v", u, err)
	}
	out, code := run(t, b, sandbox.Command{Argv: []string{"sh", "-c", "pwd; cat l; stat -c %U f; test -e /etc/issue || echo gone; echo three >f"}, User: u})
	if code != 0 || out != "/home/alice\none\nalice\ngone\n" {
		t.Errorf("%d: %q", code, out)
	}
	if got := read(t, b, "/home/alice/l"); got != "three\n" {
		t.Errorf("the snapshot's heir has %q", got)
	}
	if got := read(t, a, "/home/alice/f"); got != "two\n" {
		t.Errorf("the first has %q", got)
	}
	if e, err := b.Stat("/home/alice/f", false); err != nil || e.UID != int(u.UID) {
		t.Errorf("%+v, %v", e, err)
	}
}
