package pool_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs/overlay"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/rootfs/rootfstest"
)

func TestGrowsAheadOfNeed(t *testing.T) {
	p := newPlace(t)
	got := p.open("p", pool.Config{Initial: 288 * mib, Step: 128 * mib})
	p.destroyed(got)
	r := p.root(p.store("p"), "sb.0")
	// Slower than the growth looks, as far as a test can be sure of it.
	for i := range 8 {
		if n := p.fill(r, "/data", 64*mib); n != 64*mib {
			t.Fatalf("wrote %d MiB in step %d", n>>20, i)
		}
		if _, err := got.Grow(); err != nil {
			t.Fatal(err)
		}
	}
	img := filepath.Join(p.dir, "p.img")
	var st unix.Stat_t
	if err := unix.Stat(img, &st); err != nil {
		t.Fatal(err)
	}
	if st.Size < 512*mib {
		t.Errorf("the pool holds 512 MiB in a file of %d", st.Size>>20)
	}
	if st.Blocks*512 < st.Size {
		t.Errorf("the file is sparse: %d of %d MiB are allocated", st.Blocks*512>>20, st.Size>>20)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Join(p.dir, "p"), &fs); err != nil {
		t.Fatal(err)
	}
	if inside := int64(fs.Blocks) * fs.Bsize; inside > st.Size*96/100 {
		t.Errorf("the file system takes %d of %d MiB and keeps nothing back", inside>>20, st.Size>>20)
	}
}

// TestFull fills a pool that may not grow: writes fail, a checkpoint is
// refused, deletions work, and then all goes on.
func TestFull(t *testing.T) {
	p := newPlace(t)
	got := p.open("p", pool.Config{Initial: 288 * mib, Step: 64 * mib, Max: 288 * mib})
	p.destroyed(got)
	s := p.store("p")
	whenFull(t, p, s)
	if n := size(t, filepath.Join(p.dir, "p.img")); n != 288*mib {
		t.Errorf("the file has %d MiB", n>>20)
	}
}

func whenFull(t *testing.T, p *place, s *overlay.Store) {
	t.Helper()
	r, neighbour := p.root(s, "sb.0"), p.root(s, "sb.1")
	p.fill(neighbour, "/small", mib)
	if err := s.Snapshot("sb.1", "before"); err != nil {
		t.Fatal(err)
	}
	if n := p.fill(r, "/big", 4<<30); n < 64*mib || n == 4<<30 {
		t.Fatalf("wrote %d MiB into a pool that cannot grow", n>>20)
	}
	// To the last byte, in files small and large, from both sides.
	for i := range 64 {
		p.fill(r, fmt.Sprintf("/f%d", i), 64<<10)
		p.fill(neighbour, fmt.Sprintf("/f%d", i), 3<<10)
	}
	if err := s.Presync(); !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
		t.Errorf("checkpoint in a full pool: %v, want it refused with a hint", err)
	}
	if err := s.Flush("sb.0"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("checkpoint in a full pool soon after another: %v, want it refused", err)
	}
	for i := range 20 { // one that comes through all the same must do no harm
		if err := s.Snapshot("sb.0", fmt.Sprintf("cp-%d", i)); err != nil && !fault.Is(err, fault.Exhausted) {
			t.Errorf("snapshot in a full pool: %v", err)
		}
	}
	if err := s.Clone("before", "sb.2", 0); err != nil && !fault.Is(err, fault.Exhausted) {
		t.Errorf("clone in a full pool: %v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(p.dir, "p"), &st); err != nil || st.Flags&unix.ST_RDONLY != 0 {
		t.Fatalf("the pool went read-only (%v)", err)
	}
	// What is there can be read, and deletions work.
	neighbour.Do(func() error {
		b, err := os.ReadFile(neighbour.Path("/small"))
		if err == nil && len(b) != mib {
			err = fmt.Errorf("a neighbour's file has %d bytes", len(b))
		}
		return err
	})
	entries, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Snapshot {
			if err := s.Remove(e.ID); err != nil {
				t.Errorf("remove %s from a full pool: %v", e.ID, err)
			}
		}
	}
	r.Do(func() error { return os.Remove(r.Path("/big")) })
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := s.Presync()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("60 s after deletions: %v", err)
		}
	}
	if n := p.fill(r, "/again", 32*mib); n != 32*mib {
		t.Errorf("wrote %d of 32 MiB after deletions", n>>20)
	}
	if err := s.Snapshot("sb.0", "after"); err != nil {
		t.Error(err)
	}
}

// TestHostFull has the pool on a small disk that others fill.
func TestHostFull(t *testing.T) {
	p := newPlace(t)
	host := p.disk("ext4", 700*mib)
	got := p.open("p", pool.Config{Path: filepath.Join(host, "p.img"), Initial: 288 * mib, Step: 64 * mib, HostReserve: 64 * mib})
	p.destroyed(got)
	s := p.store("p")
	if _, err := rootfstest.Fill(filepath.Join(host, "others"), 4<<30); err != nil {
		t.Fatal(err)
	}
	whenFull(t, p, s)
	if err := os.Remove(filepath.Join(host, "others")); err != nil {
		t.Fatal(err)
	}
	r := p.root(s, "sb.9")
	for deadline := time.Now().Add(30 * time.Second); size(t, filepath.Join(host, "p.img")) <= 288*mib; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the pool does not grow when the host's disk has room again")
		}
		p.fill(r, "/more", 8*mib)
	}
}

// TestReserve lets a pool grow until the host's reserve, and no further.
func TestReserve(t *testing.T) {
	p := newPlace(t)
	host := p.disk("ext4", 900*mib)
	got := p.open("p", pool.Config{Path: filepath.Join(host, "p.img"), Initial: 288 * mib, Step: 64 * mib, HostReserve: 200 * mib})
	p.destroyed(got)
	r := p.root(p.store("p"), "sb.0")
	for range 100 {
		if p.fill(r, "/data", 32*mib) == 0 {
			break
		}
		if _, err := got.Grow(); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(host, &st); err != nil {
		t.Fatal(err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < 200*mib || free > 300*mib {
		t.Errorf("%d MiB are free on the host, want its reserve of 200", free>>20)
	}
	_, err := pool.Open(t.Context(), pool.Config{Path: filepath.Join(host, "q.img"), MountPoint: p.mkdir("q"), Initial: 288 * mib, HostReserve: 200 * mib})
	if !fault.Is(err, fault.Exhausted) {
		t.Errorf("a second pool on a disk at its reserve: %v", err)
	}
	if left, _ := filepath.Glob(host + "/q*"); len(left) != 0 {
		t.Errorf("a pool that was refused left %v", left)
	}
}

// TestKilled kills a process that has a pool mounted in a namespace of its own
// and writes to it, and goes on with what it left.
func TestKilled(t *testing.T) {
	const child = "POOL_TEST_DIR"
	c := pool.Config{Initial: 288 * mib, Step: 64 * mib}
	if dir := os.Getenv(child); dir != "" {
		p := &place{t: t, dir: dir, userns: rootfstest.UserNS(t)}
		p.open("p", c)
		s := p.store("p")
		r := p.root(s, "sb.0")
		p.fill(r, "/kept", mib)
		if err := s.Snapshot("sb.0", "cp-1"); err != nil {
			t.Fatal(err)
		}
		fmt.Println("mounted")
		for { // until killed
			r.Do(func() error { return os.WriteFile(r.Path("/busy"), make([]byte, mib), 0o644) })
		}
	}
	p := newPlace(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), child+"="+p.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && line == "mounted\n" {
		// Meanwhile nobody else gets it.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		c := c
		c.Path, c.MountPoint = filepath.Join(p.dir, "p.img"), p.mkdir("p")
		if _, err := pool.Open(ctx, c); !fault.Is(err, fault.Conflict) {
			t.Errorf("a pool that is in use: %v", err)
		}
		cancel()
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || line != "mounted\n" {
		t.Fatalf("the process said %q: %v", line, err)
	}

	// A half-made pool of an earlier try is in nobody's way.
	if err := os.WriteFile(filepath.Join(p.dir, "p.img.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.destroyed(p.open("p", c))
	s := p.store("p")
	r := p.mount(s, "sb.0")
	r.Do(func() error {
		b, err := os.ReadFile(r.Path("/kept"))
		if err == nil && len(b) != mib {
			err = fmt.Errorf("the file has %d bytes", len(b))
		}
		return err
	})
	if err := s.Clone("cp-1", "sb.1", 0); err != nil {
		t.Error(err)
	}
	p.mount(s, "sb.1")
	if err := s.Snapshot("sb.0", "cp-2"); err != nil {
		t.Error(err)
	}
}

// TestTwoAtOnce mounts pools beside each other, which btrfs refuses for file
// systems with one id.
func TestTwoAtOnce(t *testing.T) {
	p := newPlace(t)
	ids := map[string]bool{}
	for i := range 4 {
		name := fmt.Sprintf("p%d", i)
		p.destroyed(p.open(name, pool.Config{Initial: 288 * mib}))
		dir, err := os.Open(filepath.Join(p.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		id, err := btrfs.FSID(int(dir.Fd()))
		dir.Close()
		if err != nil {
			t.Fatal(err)
		}
		if on, err := btrfs.SimpleQuota(id); err != nil || !on {
			t.Errorf("quotas: %v %v", on, err)
		}
		if ids[id] {
			t.Errorf("two pools have the id %s", id)
		}
		ids[id] = true
		r := p.root(p.store(name), "sb.0")
		p.fill(r, "/x", mib)
	}
}

// TestDirectory has a pool in a directory of a btrfs, which must be left as it
// is but for what is in the directory.
func TestDirectory(t *testing.T) {
	p := newPlace(t)
	host := p.disk("btrfs", 300*mib)
	id := func() string {
		t.Helper()
		f, err := os.Open(host)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, err := btrfs.FSID(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}()
	dir := filepath.Join(host, "pool")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("after it was destroyed: %v", err)
		}
	})
	p.destroyed(p.open("p", pool.Config{Path: dir}))
	s := p.store("p")
	p.fill(p.root(s, "sb.0"), "/x", mib)
	if err := s.Snapshot("sb.0", "cp-1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Clone("cp-1", "sb.1", 0); err != nil {
		t.Fatal(err)
	}
	p.mount(s, "sb.1")
	if err := s.Remove("cp-1"); err != nil {
		t.Fatal(err)
	}
	if on, err := btrfs.SimpleQuota(id); on || err != nil {
		t.Errorf("quotas of the host's file system: %v %v", on, err)
	}
	if q, err := s.NewQuota(0); q != 0 || err != nil {
		t.Errorf("a quota without a limit: %v %v", q, err)
	}
	if _, err := s.NewQuota(mib); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a quota with a limit: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	p := newPlace(t)
	at := p.mkdir("at")
	write := func(name string, b []byte) string {
		f := filepath.Join(p.dir, name)
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return f
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		what string
		ctx  context.Context
		c    pool.Config
		want fault.Kind
	}{
		{"not a file system", t.Context(), pool.Config{Path: write("garbage", make([]byte, 4*mib)), MountPoint: at}, fault.Internal},
		{"no directory for it", t.Context(), pool.Config{Path: filepath.Join(p.dir, "none/p.img"), MountPoint: at}, fault.NotFound},
		{"no mount point", t.Context(), pool.Config{Path: filepath.Join(p.dir, "p1.img"), MountPoint: filepath.Join(p.dir, "none"), Initial: 288 * mib}, fault.NotFound},
		{"a directory that is not on btrfs", t.Context(), pool.Config{Path: "/dev/shm", MountPoint: at}, fault.Unsupported},
		{"a device", t.Context(), pool.Config{Path: "/dev/null", MountPoint: at}, fault.Invalid},
		{"no room on the host", t.Context(), pool.Config{Path: filepath.Join(p.dir, "p2.img"), MountPoint: at, HostReserve: 1 << 50}, fault.Exhausted},
		{"too small", t.Context(), pool.Config{Path: filepath.Join(p.dir, "p3.img"), MountPoint: at, Initial: 1 * mib, HostReserve: 1}, fault.Invalid},
		{"canceled", canceled, pool.Config{Path: filepath.Join(p.dir, "p4.img"), MountPoint: at}, fault.Canceled},
	} {
		got, err := pool.Open(c.ctx, c.c)
		if err == nil {
			t.Errorf("%s: opened", c.what)
			_ = got.Destroy()
			continue
		}
		if !fault.Is(err, c.want) {
			t.Errorf("%s: %v (%s), want kind %s", c.what, err, fault.KindOf(err), c.want)
		}
	}
}
