package host_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/wire"
)

// patience bounds every wait for a process to do something.
const patience = 60 * time.Second

// daemon is a running daemon.
type daemon struct {
	*wire.Conn
	t      *testing.T
	layout layout.Layout
	socket string
	cmd    *exec.Cmd
	stderr *bytes.Buffer
}

// newState returns a state directory below directories that only root may
// enter. When the test ends, nothing of its daemon may be left.
func newState(t *testing.T) layout.Layout {
	t.Helper()
	roottest.Need(t, "this test")
	l, err := layout.Of(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checkNothingLeft(t, l) })
	return l
}

func command(t *testing.T, l layout.Layout, env ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "serve")
	// The race detector sleeps for a second at each exit otherwise.
	cmd.Env = append(os.Environ(), envState+"="+l.State, "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// serve starts a daemon and connects to its node.
func serve(t *testing.T, l layout.Layout, env ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, layout: l, socket: l.Socket(), cmd: command(t, l, env...), stderr: new(bytes.Buffer)}
	d.cmd.Stderr = d.stderr
	// What a killed daemon leaves running keeps the pipe; do not wait for it.
	d.cmd.WaitDelay = time.Second
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd.ProcessState == nil {
			late := time.AfterFunc(patience, func() { d.cmd.Process.Kill() })
			defer late.Stop()
			d.cmd.Process.Signal(unix.SIGTERM)
			d.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("daemon:\n%s", d.stderr)
		}
	})
	d.connect()
	return d
}

// connect connects to the node; the host holds the socket while there is none.
func (d *daemon) connect() {
	d.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", d.socket)
		if err == nil {
			conn := wire.NewConn(c.(*net.UnixConn), nil)
			// A dead node's socket may have taken it.
			if _, _, err = wire.Call[control.Info](d.t.Context(), conn, control.VerbInfo, wire.None{}); err == nil {
				d.Conn = conn
				d.t.Cleanup(func() { conn.Close() })
				return
			}
			conn.Close()
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("connect: %v", err)
		}
	}
}

func call[Resp, Req any](d *daemon, verb string, req Req) Resp {
	d.t.Helper()
	resp, err := try[Resp](d, verb, req)
	if err != nil {
		d.t.Fatalf("%s: %v", verb, err)
	}
	return resp
}

func try[Resp, Req any](d *daemon, verb string, req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	resp, _, err := wire.Call[Resp](ctx, d.Conn, verb, req)
	return resp, err
}

func (d *daemon) info() control.Info { return call[control.Info](d, control.VerbInfo, wire.None{}) }

func (d *daemon) ensure(family string, layers ...string) control.Family {
	d.t.Helper()
	return call[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: family, Layers: layers})
}

// stop ends the daemon in order.
func (d *daemon) stop() {
	d.t.Helper()
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		d.t.Errorf("orderly end: %v", err)
	}
	checkNothingLeft(d.t, d.layout)
}

// orphan is the process that a family's engine has started.
func (d *daemon) orphan(family control.Family) int {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(family.PID), "root", d.layout.PoolMount(family.ID), "orphan"))
	if err != nil {
		d.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		d.t.Fatal(err)
	}
	return pid
}

// proc is a process that a test waits for the end of.
type proc struct{ pid, fd int }

func open(t *testing.T, pid int) proc {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return proc{pid, fd}
}

func (h proc) ended(wait time.Duration) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, int(wait.Milliseconds()))
		if err != unix.EINTR {
			return n == 1
		}
	}
}

func (h proc) kill(t *testing.T) {
	t.Helper()
	if err := unix.PidfdSendSignal(h.fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
}

// cgroups lists the directories of a daemon's cgroups.
func cgroups(t *testing.T, l layout.Layout) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/sandtree-", "/sys/fs/cgroup/*/sandtree-"} {
		m, err := filepath.Glob(pattern + l.Name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m...)
	}
	return all
}

func checkNothingLeft(t *testing.T, l layout.Layout) {
	t.Helper()
	for _, dir := range cgroups(t, l) {
		t.Errorf("left: %s", dir)
	}
	loops, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range loops {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), l.State) {
			t.Errorf("left: %s: %s", f, b)
		}
	}
	if b, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(b), l.State) || strings.Contains(string(b), l.Run()) {
		t.Errorf("left: mounts: %v", err)
	}
	if _, err := os.Lstat(l.Run()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %s: %v", l.Run(), err)
	}
	for _, dir := range []string{l.Pools(), filepath.Dir(l.PoolMount("x")), filepath.Dir(l.LayerMount("x")), filepath.Dir(l.AttachPoint("x"))} {
		if es, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) || len(es) > 0 {
			t.Errorf("left: %s: %v %v", dir, es, err)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range procs {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), envState+"="+l.State) {
			t.Errorf("left: process %s", filepath.Dir(f))
		}
	}
}

// putLayer writes an EROFS image with one file where the node would.
func putLayer(t *testing.T, l layout.Layout, digest string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tree, err := erofs.Scan(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := os.MkdirAll(l.Layers(), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(l.Layers(), digest+".erofs"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := erofs.Write(t.Context(), f, &tree.Tree); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{l.Layers(), f.Name()} {
		if err := os.Chown(p, layout.NodeID, layout.NodeID); err != nil {
			t.Fatal(err)
		}
	}
}

func digestOf(c string) string { return strings.Repeat(c, 64) }
