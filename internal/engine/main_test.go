package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/image/layer"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/statdev/statdevtest"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/testrootfs"
)

// idBase is where the ids of these tests begin, far from a daemon's. Each run has its
// own: they tell whose a process is, also beside another run.
var idBase uint32

var shared struct {
	once sync.Once
	at   string // where the layer is mounted
	undo []func()
}

func TestMain(m *testing.M) {
	if config, ok := os.LookupEnv(crashEnv); ok {
		os.Exit(crash(config))
	}
	free, err := claimIDs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	free()
	for i := len(shared.undo) - 1; i >= 0; i-- {
		shared.undo[i]()
	}
	os.Exit(code)
}

// claimIDs finds ids that no other run has. A name of a socket stands for them, which
// the kernel frees with the process.
func claimIDs() (free func(), err error) {
	const first, end = 0x71000000, 0x80000000
	for base := uint32(first); base < end; base += confine.MappedIDs {
		l, err := net.Listen("unix", fmt.Sprintf("@sandtree-enginetest-ids-%x", base))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("claim ids: %w", err)
		}
		idBase = base
		return func() { _ = l.Close() }, nil
	}
	return nil, errors.New("claim ids: others have all of them")
}

func undo(f func()) { shared.undo = append(shared.undo, f) }

// rootLayer mounts the test root as a layer, once for all tests.
func rootLayer(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "engine-layer")
		check(t, err)
		undo(func() { _ = os.RemoveAll(dir) })
		image := filepath.Join(dir, "root.erofs")
		pack(t, testrootfs.Path(t), image)
		at := filepath.Join(dir, "mount")
		check(t, os.Mkdir(at, 0o755))
		check(t, rootfs.MountLayer(image, at))
		undo(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		if c, err := cgroup.FavorDynamicMoves(); err == nil {
			undo(func() { _ = c.Close() })
		}
		shared.at = at
	})
	if shared.at == "" {
		t.Fatal("the layer of these tests was not made")
	}
	return shared.at
}

func pack(t testing.TB, tar, image string) {
	t.Helper()
	ctx := context.Background()
	spool, err := layer.NewSpool(t.TempDir())
	check(t, err)
	defer spool.Close()
	f, err := os.Open(tar)
	check(t, err)
	defer f.Close()
	s := layer.NewStack(spool, layer.DefaultLimits)
	_, err = s.Apply(ctx, f)
	check(t, err)
	out, err := os.Create(image)
	check(t, err)
	_, err = erofs.Write(ctx, out, s.View())
	check(t, err)
	check(t, out.Close())
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// host is an engine with what a host gives it.
type host struct {
	t      testing.TB
	engine *engine.Engine
	cfg    control.Config
	pool   *pool.Pool
	ended  chan control.Session
	failed chan control.CheckpointFailed
	news   chan control.Checkpoint // whose durability has changed
	ids    atomic.Int64
}

var hosts atomic.Int64

func newHost(t testing.TB, change ...func(*control.Config)) *host {
	t.Helper()
	lower := rootLayer(t)
	dir := t.TempDir()
	mount := filepath.Join(dir, "pool")
	check(t, os.Mkdir(mount, 0o755))
	attach := filepath.Join(dir, "attach") // for kernels before Linux 6.15
	check(t, os.Mkdir(attach, 0o755))
	h := &host{t: t, ended: make(chan control.Session, 1000), failed: make(chan control.CheckpointFailed, 100), news: make(chan control.Checkpoint, 1000)}
	h.openPool(dir, mount)
	t.Cleanup(func() { check(t, h.pool.Destroy()) })
	layout, err := cgroup.Detect()
	check(t, err)
	name := fmt.Sprintf("enginetest%d-%d", os.Getpid(), hosts.Add(1))
	parent, err := layout.OpenParent(name)
	check(t, err)
	_, err = parent.Child("family")
	check(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		check(t, parent.Remove(ctx))
	})
	h.cfg = control.Config{
		Family: "family", Pool: mount, Layers: []string{lower}, CgroupParent: name, CgroupFamily: "family", IDBase: idBase,
		Attach: attach, Devices: statdevtest.Open(t, idBase),
	}
	t.Cleanup(h.cfg.Devices.Close)
	for _, f := range change {
		f(&h.cfg)
	}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *host) openPool(dir, mount string) {
	h.t.Helper()
	var err error
	h.pool, err = pool.Open(background, pool.Config{Path: filepath.Join(dir, "pool.img"), MountPoint: mount, Initial: 1 << 30})
	check(h.t, err)
}

func (h *host) start() {
	h.t.Helper()
	var err error
	h.engine, err = engine.New(h.cfg, control.Events{
		SessionEnded:     func(s control.Session) { h.ended <- s },
		SandboxEnded:     func(control.SandboxEnded) {},
		CheckpointFailed: func(c control.CheckpointFailed) { h.failed <- c },
		CheckpointKept:   h.told,
	}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	check(h.t, err)
}

// told keeps the news, the latest thousand at least.
func (h *host) told(c control.Checkpoint) {
	for {
		select {
		case h.news <- c:
			return
		default:
		}
		select {
		case <-h.news:
		default:
		}
	}
}

func (h *host) stop() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(background, 30*time.Second)
	defer cancel()
	check(h.t, h.engine.Close(ctx))
}

// restart ends the engine, with its pool, and starts another one.
func (h *host) restart() {
	h.t.Helper()
	h.stop()
	check(h.t, h.pool.Destroy())
	h.openPool(filepath.Dir(h.cfg.Pool), h.cfg.Pool)
	h.start()
}

var background = context.Background()

// withoutStandbys makes every rollback go the whole way.
func withoutStandbys(c *control.Config) { c.NoStandbys = true }

func (h *host) id(kind string) string { return fmt.Sprintf("%s-%d", kind, h.ids.Add(1)) }

func (h *host) create() string {
	h.t.Helper()
	id := h.id("sb")
	_, err := h.engine.Create(background, control.CreateRequest{Sandbox: id, Hostname: "box"})
	check(h.t, err)
	return id
}

func (h *host) checkpoint(box string) control.Checkpoint {
	h.t.Helper()
	c, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
	check(h.t, err)
	return c
}

// talk is a session seen from the client: lines go in and come out.
type talk struct {
	t       testing.TB
	id      string
	in, out *os.File
	lines   *bufio.Reader
	tty     bool
}

func newTalk(t testing.TB, s control.Session, files []*os.File) *talk {
	x := &talk{t: t, id: s.ID, tty: s.TTY, in: files[0], out: files[0]}
	if !s.TTY {
		x.out = files[1]
	}
	_ = files[len(files)-1].Close() // stderr, or the terminal's guard: here nobody reads in a stop
	for _, f := range []*os.File{x.in, x.out} {
		check(t, unix.SetNonblock(int(f.Fd()), true))
	}
	// Reopened through the runtime's poller, so that deadlines work.
	reopen := func(f *os.File) *os.File {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		check(t, err)
		_ = f.Close()
		check(t, unix.SetNonblock(fd, true))
		return os.NewFile(uintptr(fd), f.Name())
	}
	x.in = reopen(x.in)
	if x.tty {
		x.out = x.in
	} else {
		x.out = reopen(x.out)
	}
	x.lines = bufio.NewReader(x.out)
	t.Cleanup(func() { _ = x.in.Close(); _ = x.out.Close() })
	return x
}

func (h *host) exec(box string, tty bool, argv ...string) *talk {
	h.t.Helper()
	s, files, err := h.engine.Exec(background, control.ExecRequest{
		Sandbox: box, Session: h.id("se"), Argv: argv, TTY: tty,
		Env: []string{"PATH=/usr/bin:/bin", "PS1=", "HOME=/root", "TERM=dumb"}, Window: control.Window{Rows: 24, Cols: 80},
	})
	check(h.t, err)
	return newTalk(h.t, s, files)
}

// sessions fetches all sessions of a sandbox anew.
func (h *host) adopt(box, session string) *talk {
	h.t.Helper()
	s, files, err := h.engine.Adopt(background, control.SessionRequest{Sandbox: box, Session: session})
	check(h.t, err)
	return newTalk(h.t, s, files)
}

func (x *talk) say(line string) {
	x.t.Helper()
	check(x.t, x.in.SetWriteDeadline(time.Now().Add(10*time.Second)))
	_, err := io.WriteString(x.in, line+"\n")
	check(x.t, err)
}

// until reads until a line begins with prefix, and returns the rest of it.
func (x *talk) until(prefix string) string {
	x.t.Helper()
	check(x.t, x.out.SetReadDeadline(time.Now().Add(15*time.Second)))
	var seen []string
	for {
		l, err := x.lines.ReadString('\n')
		l = strings.TrimRight(l, "\r\n")
		if strings.HasPrefix(l, prefix) {
			return strings.TrimPrefix(l, prefix)
		}
		seen = append(seen, l)
		if err != nil {
			x.t.Fatalf("session %s: no line %q but %q: %v", x.id, prefix, seen, err)
		}
	}
}

func (x *talk) ask(line, prefix string) string {
	x.t.Helper()
	x.say(line)
	return x.until(prefix)
}

// rollback rolls back and returns the sessions that go on, by id.
func (h *host) rollback(box, checkpoint string) (control.Rebirth, map[string]*talk) {
	h.t.Helper()
	r, files, err := h.engine.Rollback(background, control.CheckpointRef{Sandbox: box, Checkpoint: checkpoint})
	check(h.t, err)
	out := map[string]*talk{}
	at := 0
	for _, s := range r.Sandbox.Sessions {
		if s.Ended {
			continue
		}
		n := s.Descriptors()
		if at+n > len(files) {
			h.t.Fatalf("%d descriptors for %+v", len(files), r.Sandbox.Sessions)
		}
		out[s.ID] = newTalk(h.t, s, files[at:at+n])
		at += n
	}
	if at != len(files) {
		h.t.Fatalf("%d descriptors, %d used", len(files), at)
	}
	return r, out
}

// forked is a fork of which nobody wants the sessions' descriptors.
func forked(r control.ForkReply, files []*os.File, err error) (control.ForkReply, error) {
	for _, f := range files {
		_ = f.Close()
	}
	return r, err
}
