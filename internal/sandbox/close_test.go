package sandbox_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// host is what an incarnation may leave behind.
type host struct {
	processes  map[string]string // pid to name, of those that are ours
	namespaces map[string]bool
	fds, seed  int
	mounts     int
	groups     []string
}

// look takes stock of the host.
func look(t testing.TB, f *family) host {
	t.Helper()
	h := host{processes: map[string]string{}, namespaces: map[string]bool{}}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		status, err := os.ReadFile(d + "/status")
		if err != nil {
			continue // it has ended
		}
		var name, parent, uid string
		for line := range strings.Lines(string(status)) {
			v := strings.Fields(line)
			switch v[0] {
			case "Name:":
				name = v[1]
			case "PPid:":
				parent = v[1]
			case "Uid:":
				uid = v[1]
			}
		}
		id, _ := strconv.Atoi(uid)
		if id < base || id >= base+65536 {
			if parent != strconv.Itoa(f.seed.Server().PID()) {
				continue
			}
		}
		h.processes[filepath.Base(d)] = name
		ns, _ := filepath.Glob(d + "/ns/*")
		for _, n := range ns {
			if l, err := os.Readlink(n); err == nil {
				h.namespaces[l] = true
			}
		}
	}
	h.fds = count(t, "/proc/self/fd")
	h.seed = count(t, fmt.Sprintf("/proc/%d/fd", f.seed.Server().PID()))
	m, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// Other tests of the machine mount things too; ours would be of these ids,
	// below this directory, or of one of these cgroups.
	for line := range strings.Lines(string(m)) {
		if strings.Contains(line, f.dir) || strings.Contains(line, fmt.Sprint("uid=", base)) || strings.Contains(line, filepath.Base(f.parent.Path())) {
			h.mounts++
		}
	}
	if h.groups, err = f.parent.Names(); err != nil {
		t.Fatal(err)
	}
	return h
}

func count(t testing.TB, dir string) int {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

func (h host) compare(t testing.TB, after host) {
	t.Helper()
	if !maps.Equal(h.processes, after.processes) {
		t.Errorf("processes: %v, before %v", after.processes, h.processes)
	}
	if len(after.namespaces) > len(h.namespaces) {
		t.Errorf("namespaces: %v, before %v", after.namespaces, h.namespaces)
	}
	if h.fds != after.fds || h.seed != after.seed {
		t.Errorf("descriptors: %d, before %d; the seed's: %d, before %d", after.fds, h.fds, after.seed, h.seed)
	}
	if h.mounts != after.mounts {
		t.Errorf("mounts: %d, before %d", after.mounts, h.mounts)
	}
	if len(h.groups) != len(after.groups) {
		t.Errorf("cgroups: %v, before %v", after.groups, h.groups)
	}
}

func TestTwoHundredLeaveNothing(t *testing.T) {
	f := home(t)
	boot(t).Close(context.Background()) // what is made once is made now
	before := look(t, f)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for n := range 25 {
				once(t, f, n)
			}
		})
	}
	wg.Wait()
	before.compare(t, look(t, f))
}

// once boots, runs commands, leaves some running, and closes.
func once(t *testing.T, f *family, n int) {
	i, err := f.seed.Boot(sandbox.Spec{Root: f.root(t), Hostname: "box", Cgroup: f.group(t, cgroup.Limits{}), Walls: f.walls})
	if err != nil {
		t.Error(err)
		return
	}
	defer end(t, i)
	r, w, err := os.Pipe()
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	defer w.Close()
	io3 := [3]int{int(r.Fd()), int(w.Fd()), int(w.Fd())}
	p, err := i.Exec(sandbox.Command{Argv: []string{"true"}}, io3)
	if err != nil {
		t.Error(err)
		return
	}
	<-p.Done()
	if p.ExitCode() != 0 {
		t.Errorf("true: %d", p.ExitCode())
	}
	if n%3 == 0 {
		if _, err := i.Exec(sandbox.Command{Argv: []string{"sh", "-c", "sleep 100 & sleep 100 & setsid sleep 100 & wait"}}, io3); err != nil {
			t.Error(err)
		}
	}
	if n%3 == 1 {
		if _, err := i.Exec(sandbox.Command{Argv: []string{"no-such-command"}}, io3); !fault.Is(err, fault.NotFound) {
			t.Error(err)
		}
		master, slave, err := i.OpenPTY(control.Window{Rows: 1, Cols: 1})
		if err != nil {
			t.Error(err)
			return
		}
		unix.Close(master)
		unix.Close(slave)
	}
}

func TestCloseEndsOddStates(t *testing.T) {
	for _, c := range []struct{ name, script string }{
		{"stopped", "sleep 100 & kill -STOP $!; echo ready; kill -STOP $$"},
		{"ignores everything", "trap '' TERM INT HUP; echo ready; while :; do sleep 1; done"},
		{"zombies", "python3 -c 'import os,time\nfor _ in range(50):\n  if os.fork()==0: os._exit(0)\nprint(\"ready\",flush=True)\ntime.sleep(100)'"},
		{"traced", "python3 -c 'import os,ctypes,time\nc=ctypes.CDLL(None)\np=os.fork()\nif p==0:\n  c.ptrace(0,0,0,0); os.kill(os.getpid(),19)\nos.waitpid(p,2)\nprint(\"ready\",flush=True)\ntime.sleep(100)'"},
		{"threads", "python3 -c 'import threading,time\nfor _ in range(50): threading.Thread(target=time.sleep,args=(100,)).start()\nprint(\"ready\",flush=True)'"},
		{"forks", "echo ready; f() { sleep 0.01; f & f; }; ulimit -u 200; f 2>/dev/null"},
		{"vfork parent waits", "python3 -c 'import os,ctypes\nprint(\"ready\",flush=True)\nc=ctypes.CDLL(None)\nif c.vfork()==0:\n  c.kill(c.getpid(),19)\n'"},
		{"own namespace of pids", "unshare -Ur true; echo ready; sleep 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := home(t)
			before := look(t, f)
			g := f.group(t, cgroup.Limits{PIDs: 300})
			i, err := f.seed.Boot(sandbox.Spec{Root: f.root(t), Cgroup: g, Walls: f.walls})
			if err != nil {
				t.Fatal(err)
			}
			p, r, err := start(t, i, sandbox.Command{Argv: []string{"sh", "-c", c.script}})
			if err != nil {
				t.Fatal(err)
			}
			if b := make([]byte, 5); must(io.ReadFull(r, b)) != nil {
				t.Errorf("it is not ready: %q", b)
			}
			r.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if err := i.Close(ctx); err != nil {
				t.Error(err)
			}
			<-p.Done()
			if _, lost := p.Status(); !lost && p.ExitCode() != 137 {
				t.Errorf("status %d", p.ExitCode())
			}
			before.compare(t, look(t, f))
		})
	}
}

func TestCloseOfFrozen(t *testing.T) {
	i := boot(t)
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := i.Cgroup().Freeze(time.Second); err != nil {
		t.Fatal(err)
	}
	end(t, i)
	<-p.Done()
	if _, err := i.OpenFile("/etc/passwd"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("open after close: %v", err)
	}
	if _, _, err := start(t, i, sandbox.Command{Argv: []string{"true"}}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("exec after close: %v", err)
	}
	if _, err := i.Adopt(5); !fault.Is(err, fault.Unavailable) {
		t.Errorf("adopt after close: %v", err)
	}
}

// PID 1 may be killed from outside, as by the OOM killer: waiters are told.
func TestEndOfPID1EndsAll(t *testing.T) {
	i := boot(t)
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := unix.PidfdSendSignal(i.PIDFD(), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	<-i.Done()
	<-p.Done()
	if _, lost := p.Status(); !lost {
		t.Error("the process's end is not told as a loss")
	}
}

// Root inside can stop a command's process while PID 1 waits for it to execute.
// That costs it the sandbox, and nobody else anything.
func TestSandboxThatBlocksPID1IsEnded(t *testing.T) {
	defer sandbox.SetPatience(sandbox.SetPatience(time.Second))
	i := boot(t)
	_, r, err := start(t, i, sandbox.Command{Argv: []string{"python3", "-c", `
import os, signal
print("ready", flush=True)
me, pid = os.getpid(), os.getpid() + 1
while True:
    for p in range(pid, pid + 3):
        try: os.kill(p, signal.SIGSTOP)
        except OSError: pass
    last = int(open("/proc/loadavg").read().split()[-1])
    pid = max(pid, last)`}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b := make([]byte, 6); must(io.ReadFull(r, b)) != nil {
		t.Fatal("it is not ready")
	}
	for n := range 2000 {
		before := time.Now()
		p, out, err := start(t, i, sandbox.Command{Argv: []string{"true"}})
		if d := time.Since(before); d > 5*time.Second {
			t.Fatalf("exec took %v", d)
		}
		if err != nil {
			if !fault.Is(err, fault.Unavailable) {
				t.Errorf("exec: %v", err)
			}
			<-i.Done()
			t.Logf("blocked by attempt %d", n)
			return
		}
		out.Close()
		_ = i.Signal(p.PID(), unix.SIGCONT)
		_ = i.Signal(p.PID(), unix.SIGKILL)
		<-p.Done()
	}
	t.Log("never blocked")
}

func TestFailedBootLeavesNothing(t *testing.T) {
	f := home(t)
	before := look(t, f)
	empty := func() int {
		fd, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	linked := func() int {
		root := f.root(t)
		for _, d := range []string{"proc", "sys"} {
			if err := unix.Unlinkat(root, d, unix.AT_REMOVEDIR); err != nil {
				t.Fatal(err)
			}
			if err := unix.Symlinkat("/tmp", root, d); err != nil {
				t.Fatal(err)
			}
		}
		return root
	}
	for name, c := range map[string]struct {
		spec sandbox.Spec
		kind fault.Kind
	}{
		"root is no mount":         {sandbox.Spec{Root: empty(), Walls: f.walls}, fault.Internal},
		"root is a bad number":     {sandbox.Spec{Root: -1, Walls: f.walls}, fault.Internal},
		"proc is a link":           {sandbox.Spec{Root: linked(), Walls: f.walls}, fault.Invalid},
		"hostname with a space":    {sandbox.Spec{Root: f.root(t), Hostname: "a b", Walls: f.walls}, fault.Invalid},
		"hostname that is so long": {sandbox.Spec{Root: f.root(t), Hostname: strings.Repeat("a", 65), Walls: f.walls}, fault.Invalid},
	} {
		c.spec.Cgroup = f.group(t, cgroup.Limits{})
		if _, err := f.seed.Boot(c.spec); !fault.Is(err, c.kind) {
			t.Errorf("%s: error %v of kind %s, want %s", name, err, fault.KindOf(err), c.kind)
		}
	}
	before.compare(t, look(t, f))
	boot(t)
}
