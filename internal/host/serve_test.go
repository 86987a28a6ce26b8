package host_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/wire"
)

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
