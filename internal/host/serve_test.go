package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	supervisorcontrol "github.com/sandtree/sandtree/internal/supervisor/control"
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
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
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
	for _, dir := range []string{l.Pools(), filepath.Dir(l.PoolMount("x")), filepath.Dir(l.LayerMount("x"))} {
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

func TestLife(t *testing.T) {
	l := newState(t)
	d := serve(t, l)
	putLayer(t, l, digestOf("a"))
	putLayer(t, l, digestOf("b"))

	info := d.info()
	if info.State != l.State || info.Socket != l.Socket() || info.PID != d.cmd.Process.Pid || info.NodeStarts != 1 || info.Version == "" {
		t.Errorf("info %+v", info)
	}
	if st, err := os.Stat(l.Socket()); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", st.Mode(), err)
	}

	one := d.ensure("tp-1", digestOf("a"), digestOf("b"))
	two := d.ensure("tp-2", digestOf("b"))
	if one.IDBase == two.IDBase || one.PID == two.PID {
		t.Errorf("families %+v and %+v", one, two)
	}
	if again := d.ensure("tp-1", digestOf("a"), digestOf("b")); again.PID != one.PID {
		t.Errorf("a family that runs was started again: %d, %d", again.PID, one.PID)
	}
	if _, err := try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: "tp-1"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("other layers: %v", err)
	}
	if fs := d.info().Families; len(fs) != 2 || fs[0].ID != "tp-1" || fs[1].ID != "tp-2" {
		t.Errorf("families %+v", fs)
	}
	st := call[control.Stats](d, control.VerbStats, wire.None{})
	if len(st.Families) != 2 || st.Families[0].PoolBytes < 320<<20 || st.Families[0].PoolFreeBytes == 0 || st.DiskFreeBytes == 0 {
		t.Errorf("stats %+v", st)
	}

	orphan := open(t, d.orphan(one))
	call[wire.None](d, control.VerbEndFamily, control.FamilyRequest{Family: "tp-1"})
	if !orphan.ended(0) {
		t.Error("what the supervisor had started goes on")
	}
	if fs := d.info().Families; len(fs) != 1 {
		t.Errorf("families after the end of one: %+v", fs)
	}
	call[wire.None](d, control.VerbEndFamily, control.FamilyRequest{Family: "tp-1"})
	call[wire.None](d, control.VerbEndFamily, control.FamilyRequest{Family: "never"})
	// The layer that both had is still there for the other.
	call[wire.None](d, verbCreate, sandboxOf{"tp-2", "sb-1"})
	d.ensure("tp-3", digestOf("b"))
	d.stop()
	if _, err := os.Stat(filepath.Join(l.Layers(), digestOf("a")+".erofs")); err != nil {
		t.Errorf("images are gone: %v", err)
	}
}

func TestNodeHasNoPrivilege(t *testing.T) {
	d := serve(t, newState(t))
	id := call[identity](d, verbIdentity, wire.None{})
	for k, want := range map[string]string{
		"Uid":        "536870911 536870911 536870911 536870911",
		"Gid":        "536870911 536870911 536870911 536870911",
		"Groups":     "",
		"CapPrm":     "0000000000000000",
		"CapBnd":     "0000000000000000",
		"NoNewPrivs": "1",
	} {
		if id.Status[k] != want {
			t.Errorf("%s: %q, want %q", k, id.Status[k], want)
		}
	}
	for dir, want := range map[string]string{
		"images": "", "node": "", "sessions": "",
		"": "permission denied", "pools": "no such file or directory",
	} {
		if id.CanWrite[dir] != want {
			t.Errorf("write in %q: %q, want %q", dir, id.CanWrite[dir], want)
		}
	}
	d.stop()
}

func TestBadRequests(t *testing.T) {
	l := newState(t)
	d := serve(t, l)
	putLayer(t, l, digestOf("a"))
	image := filepath.Join(l.Layers(), digestOf("a")+".erofs")
	at := func(c string) string { return filepath.Join(l.Layers(), digestOf(c)+".erofs") }
	own := func(path string) { os.Lchown(path, layout.NodeID, layout.NodeID) }
	for _, err := range []error{
		os.Symlink(image, at("1")),
		os.Mkdir(at("2"), 0o700),
		unix.Mkfifo(at("3"), 0o600),
		os.WriteFile(at("4"), []byte("no image"), 0o600),
		os.WriteFile(at("5"), []byte("root's"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []string{"1", "2", "3", "4"} {
		own(at(c))
	}
	for _, tt := range []struct {
		name, family, layer string
		kind                fault.Kind
	}{
		{"no id", "", digestOf("a"), fault.Invalid},
		{"a path as id", "../x", digestOf("a"), fault.Invalid},
		{"long id", strings.Repeat("x", 64), digestOf("a"), fault.Invalid},
		{"a path as digest", "tp-1", "../../../etc/passwd", fault.Invalid},
		{"upper case", "tp-1", digestOf("A"), fault.Invalid},
		{"missing layer", "tp-1", digestOf("0"), fault.NotFound},
		{"symbolic link", "tp-1", digestOf("1"), fault.Invalid},
		{"directory", "tp-1", digestOf("2"), fault.Invalid},
		{"FIFO", "tp-1", digestOf("3"), fault.Invalid},
		{"no image", "tp-1", digestOf("4"), fault.Internal},
		{"another user's file", "tp-1", digestOf("5"), fault.Invalid},
	} {
		// The good layer before it must be given back.
		_, err := try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: tt.family, Layers: []string{digestOf("a"), tt.layer}})
		if !fault.Is(err, tt.kind) {
			t.Errorf("%s: %v (%s), want %s", tt.name, err, fault.KindOf(err), tt.kind)
		}
	}
	if es, err := os.ReadDir(filepath.Dir(l.LayerMount("x"))); err != nil || len(es) > 0 {
		t.Errorf("mount points left: %v, %v", es, err)
	}
	if d.ensure("tp-1", digestOf("a")).PID == 0 {
		t.Error("no family after bad requests")
	}
	d.stop()
}

func TestSupervisorThatDoesNotStart(t *testing.T) {
	l := newState(t)
	for env, want := range map[string]struct {
		kind fault.Kind
		text string
	}{
		"refuse-": {fault.Unsupported, "start family tp-1: no such kernel"},
		"die-":    {fault.Unavailable, "exited with status 9"},
	} {
		d := serve(t, l, envBroken+"="+env)
		for range 2 {
			_, err := try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: "tp-1"})
			if !fault.Is(err, want.kind) || !strings.Contains(err.Error(), want.text) {
				t.Errorf("%s: %v (%s)", env, err, fault.KindOf(err))
			}
		}
		if es, err := os.ReadDir(l.Pools()); err != nil || len(es) > 0 {
			t.Errorf("pools left: %v, %v", es, err)
		}
		d.stop()
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	l := newState(t)
	d := serve(t, l)
	out, err := command(t, l).CombinedOutput()
	want := fmt.Sprintf("process %d with socket %s", d.cmd.Process.Pid, l.Socket())
	if code := exitCode(err); code != fault.Code(fault.Conflict).Exit || !strings.Contains(string(out), want) {
		t.Errorf("second daemon on the state directory: %v: %s", err, out)
	}
	other := newState(t)
	out, err = command(t, other, envSocket+"="+l.Socket()).CombinedOutput()
	if code := exitCode(err); code != fault.Code(fault.Conflict).Exit || !strings.Contains(string(out), "another program listens on it") {
		t.Errorf("second daemon on the socket: %v: %s", err, out)
	}
	if d.info().NodeStarts != 1 {
		t.Error("the first daemon was disturbed")
	}
	d.stop()
}

func exitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return -1
}

func TestKilledNodeLosesNothing(t *testing.T) {
	l := newState(t)
	d := serve(t, l)
	f := d.ensure("tp-1")
	call[wire.None](d, verbCreate, sandboxOf{"tp-1", "sb-1"})
	open(t, d.info().NodePID).kill(t)
	<-d.Done()
	d.connect()
	info := d.info()
	if info.NodeStarts != 2 || len(info.Families) != 1 || info.Families[0].PID != f.PID {
		t.Errorf("info %+v", info)
	}
	r := call[supervisorcontrol.ListReply](d, verbList, "tp-1")
	if len(r.Sandboxes) != 1 || r.Sandboxes[0].ID != "sb-1" {
		t.Errorf("sandboxes after the node's death: %+v", r)
	}
	d.stop()
}

func TestKilledSupervisorTakesItsFamilyOnly(t *testing.T) {
	l := newState(t)
	d := serve(t, l)
	putLayer(t, l, digestOf("a"))
	one, two := d.ensure("tp-1", digestOf("a")), d.ensure("tp-2", digestOf("a"))
	call[wire.None](d, verbCreate, sandboxOf{"tp-2", "sb-2"})
	orphan := open(t, d.orphan(one))
	open(t, one.PID).kill(t)
	if es := call[[]string](d, verbEvents, 1); es[0] != "died tp-1: killed by SIGKILL" {
		t.Errorf("events %q", es)
	}
	// By the time it is told, all is gone.
	if !orphan.ended(0) {
		t.Error("what the supervisor had started goes on")
	}
	if es, err := os.ReadDir(l.Pools()); err != nil || len(es) != 1 {
		t.Errorf("pools: %v, %v", es, err)
	}
	for _, dir := range cgroups(t, l) {
		if _, err := os.Stat(filepath.Join(dir, "tp-1")); err == nil {
			t.Errorf("left: %s/tp-1", dir)
		}
	}
	if r := call[supervisorcontrol.ListReply](d, verbList, "tp-2"); len(r.Sandboxes) != 1 {
		t.Errorf("the other family: %+v", r)
	}
	again := d.ensure("tp-1", digestOf("a"))
	if again.PID == one.PID || again.IDBase != one.IDBase || two.IDBase == one.IDBase {
		t.Errorf("started again: %+v, was %+v", again, one)
	}
	d.stop()
}

func TestKilledHostIsCleanedUpAfter(t *testing.T) {
	l := newState(t)
	d := serve(t, l)
	putLayer(t, l, digestOf("a"))
	f := d.ensure("tp-1", digestOf("a"))
	orphan, node, supervisor := open(t, d.orphan(f)), open(t, d.info().NodePID), open(t, f.PID)
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The next one starts at once, while parts of the first may still run.
	next := serve(t, l)
	for _, h := range []proc{node, supervisor, orphan} {
		if !h.ended(0) {
			t.Errorf("process %d of the killed daemon goes on", h.pid)
		}
	}
	d.cmd.Wait()
	if fs := next.info().Families; len(fs) != 0 {
		t.Errorf("families %+v", fs)
	}
	if es, err := os.ReadDir(l.Pools()); err != nil || len(es) > 0 {
		t.Errorf("pools: %v, %v", es, err)
	}
	if again := next.ensure("tp-1", digestOf("a")); again.IDBase != f.IDBase {
		t.Errorf("another range of ids: %+v, was %+v", again, f)
	}
	next.stop()
}

func TestNodeThatNeverComesUp(t *testing.T) {
	l := newState(t)
	out, err := command(t, l, envBrokenNode+"=1").CombinedOutput()
	if code := exitCode(err); code != fault.Code(fault.Unavailable).Exit || !strings.Contains(string(out), "died 3 times before it was ready; the last one exited with status 1") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestSocketThatCannotBe(t *testing.T) {
	l := newState(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]fault.Kind{
		file:                               fault.Exists,
		"/tmp/" + strings.Repeat("x", 108): fault.Invalid,
	} {
		out, err := command(t, l, envSocket+"="+socket).CombinedOutput()
		if code := exitCode(err); code != fault.Code(want).Exit {
			t.Errorf("%s: %v: %s", socket, err, out)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file at the socket's path: %q, %v", b, err)
	}
}

// TestNamespace checks that the daemon's mounts are its own and that the
// host's come in.
func TestNamespace(t *testing.T) {
	d := serve(t, newState(t))
	f := d.ensure("tp-1")
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{d.cmd.Process.Pid, d.info().NodePID, f.PID} {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || theirs == ours {
			t.Errorf("process %d is in mount namespace %s, %v", pid, theirs, err)
		}
	}
	if _, err := os.Stat(filepath.Join(d.layout.PoolMount("tp-1"), "orphan")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the pool shows outside: %v", err)
	}
	c, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", f.PID))
	if err != nil || !strings.Contains(string(own), "sandtree-"+d.layout.Name+"/tp-1/supervisor") {
		t.Errorf("cgroups (%s) of the supervisor: %s %v", c, own, err)
	}
	d.stop()
}

func TestFullDisk(t *testing.T) {
	d := serve(t, newState(t), envFullDisk+"=1")
	if _, err := try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: "tp-1"}); !fault.Is(err, fault.Exhausted) {
		t.Errorf("a pool on a full disk: %v", err)
	}
	if es := call[[]string](d, verbEvents, 1); es[0] != "low disk" {
		t.Errorf("events %q", es)
	}
	d.stop()
}

// descriptors lists what a process has open, by what it is.
func descriptors(t *testing.T, pid int) map[string]int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, e := range es {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		kind, _, _ := strings.Cut(target, "[")
		kinds[kind]++
	}
	return kinds
}

// children lists the processes whose parent is pid.
func children(t *testing.T, pid int) (all []string) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err == nil { // a thread may end
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return all
}

func TestHostKeepsNothingOfWhatEnded(t *testing.T) {
	d := serve(t, newState(t))
	putLayer(t, d.layout, digestOf("a"))
	round := func() {
		f := d.ensure("tp-1", digestOf("a"))
		d.ensure("tp-1", digestOf("a"))
		open(t, f.PID).kill(t)
		call[[]string](d, verbEvents, 1)
		d.ensure("tp-2", digestOf("a"))
		call[wire.None](d, control.VerbEndFamily, control.FamilyRequest{Family: "tp-2"})
		open(t, d.info().NodePID).kill(t)
		<-d.Done()
		d.connect()
	}
	round() // opens what the runtime keeps
	before := descriptors(t, d.cmd.Process.Pid)
	for range 3 {
		round()
	}
	after := descriptors(t, d.cmd.Process.Pid)
	for kind, n := range after {
		if n > before[kind] {
			t.Errorf("%d of %s open, %d before", n, kind, before[kind])
		}
	}
	if c := children(t, d.cmd.Process.Pid); len(c) != 1 {
		t.Errorf("children %v, of which one is the node", c)
	}
	d.stop()
}

// TestFamiliesSideBySide starts, kills and ends families from several callers
// at once; a node is killed amid it.
func TestFamiliesSideBySide(t *testing.T) {
	d := serve(t, newState(t))
	putLayer(t, d.layout, digestOf("a"))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			id := fmt.Sprintf("tp-%d", i%3) // two callers share one
			for round := range 3 {
				f, err := try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: id, Layers: []string{digestOf("a")}})
				if err == nil && round%2 == 0 {
					// It may have ended meanwhile: only a number that is still
					// the supervisor's is killed.
					if cmd, e := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.PID)); e == nil && strings.HasSuffix(string(cmd), "--family\x00"+id+"\x00") {
						_ = unix.Kill(f.PID, unix.SIGKILL)
					}
				} else if err == nil {
					_, err = try[wire.None](d, control.VerbEndFamily, control.FamilyRequest{Family: id})
				}
				// The other caller may have killed it while it started.
				if err != nil && !fault.Is(err, fault.Unavailable) {
					t.Errorf("%s: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: "tp-0", Layers: []string{digestOf("a")}}); err != nil {
		t.Error(err)
	}
	// A family that starts while its node dies is there for the next one, or
	// not at all.
	starting := make(chan struct{})
	go func() {
		defer close(starting)
		_, _ = try[control.Family](d, control.VerbEnsureFamily, control.EnsureFamilyRequest{Family: "tp-9"})
	}()
	open(t, d.info().NodePID).kill(t)
	<-starting
	d.connect()
	if d.ensure("tp-9").PID == 0 {
		t.Error("no family")
	}
	d.stop()
}
