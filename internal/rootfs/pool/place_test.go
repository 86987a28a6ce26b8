package pool_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/loop"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs/overlay"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/rootfs/rootfstest"
)

const mib = 1 << 20

// place is where a test has its pools.
type place struct {
	t      *testing.T
	dir    string
	userns int
}

func newPlace(t *testing.T) *place {
	t.Helper()
	before := rootfstest.Before(t)
	t.Cleanup(func() { before.Check(t) })
	return &place{t: t, dir: t.TempDir(), userns: rootfstest.UserNS(t)}
}

func (p *place) mkdir(name string) string {
	p.t.Helper()
	d := filepath.Join(p.dir, name)
	if err := os.MkdirAll(d, 0o755); err != nil {
		p.t.Fatal(err)
	}
	return d
}

// open opens a pool that is destroyed with the test.
func (p *place) open(name string, c pool.Config) *pool.Pool {
	p.t.Helper()
	c.MountPoint, c.Log = p.mkdir(name), slog.New(slog.DiscardHandler)
	if c.Path == "" {
		c.Path = filepath.Join(p.dir, name+".img")
	}
	if c.HostReserve == 0 {
		c.HostReserve = 1
	}
	got, err := pool.Open(p.t.Context(), c)
	if err != nil {
		p.t.Fatal(err)
	}
	return got
}

func (p *place) destroyed(got *pool.Pool) {
	p.t.Helper()
	p.t.Cleanup(func() {
		if err := got.Destroy(); err != nil {
			p.t.Error(err)
		}
	})
}

// store opens a store in a pool, over one layer that is a plain directory.
func (p *place) store(name string) *overlay.Store {
	p.t.Helper()
	s, err := overlay.Open(overlay.Config{
		Pool: filepath.Join(p.dir, name), Layers: []string{p.mkdir("layer")}, UserNS: p.userns,
		Attach: p.mkdir(name + ".attach"),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			p.t.Error(err)
		}
	})
	return s
}

func (p *place) root(s *overlay.Store, id string) rootfstest.Root {
	p.t.Helper()
	if err := s.CreateUpper(id, 0); err != nil {
		p.t.Fatal(err)
	}
	return p.mount(s, id)
}

func (p *place) mount(s *overlay.Store, id string) rootfstest.Root {
	p.t.Helper()
	fd, err := s.MountRoot(id)
	if err != nil {
		p.t.Fatal(err)
	}
	r := rootfstest.NewRoot(p.t, fd)
	p.t.Cleanup(r.Close)
	return r
}

func (p *place) fill(r rootfstest.Root, path string, n int64) (got int64) {
	p.t.Helper()
	r.Do(func() (err error) { got, err = rootfstest.Fill(r.Path(path), n); return err })
	return got
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// disk makes a small file system to be the host's.
func (p *place) disk(fstype string, bytes int64) string {
	p.t.Helper()
	img, at := filepath.Join(p.dir, "disk.img"), p.mkdir("disk")
	f, err := os.Create(img)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(bytes); err != nil {
		p.t.Fatal(err)
	}
	if fstype == "btrfs" {
		err = pool.WriteEmpty(f)
	} else {
		var out []byte
		if out, err = exec.Command("mkfs."+fstype, "-q", img).CombinedOutput(); err != nil {
			err = fmt.Errorf("mkfs.%s: %w: %s", fstype, err, out)
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
	d, err := loop.Attach(f, loop.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer d.Close()
	fd, err := mount.New(fstype).Set("source", d.Path()).Mount(0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := mount.Attach(fd, at); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		// The pool's loop device lets go of this disk a moment after it is closed.
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			err := mount.Unmount(at)
			if err == nil {
				return
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				p.t.Error(err)
				return
			}
		}
	})
	return at
}
