package sandbox_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// limits finds the sandbox's limits as language runtimes do: from
// /proc/self/mountinfo and /proc/self/cgroup to the controllers' files.
const limits = `
import os
mounts = {}
for line in open("/proc/self/mountinfo"):
    a, b = line.split(" - ")
    kind, _, opts = b.split()
    root, at = a.split()[3:5]
    if kind == "cgroup2": mounts["v2"] = (root, at)
    if kind == "cgroup":
        for c in opts.split(","): mounts[c] = (root, at)
groups = {}
for line in open("/proc/self/cgroup"):
    _, cs, path = line.rstrip("\n").split(":", 2)
    for c in (cs.split(",") if cs else ["v2"]): groups[c] = path
def read(controller, v1, v2):
    c = controller if controller in mounts else "v2"
    root, at = mounts[c]
    path = groups[c]
    if root != "/" or ".." in path: return "root %s, path %s" % (root, path)
    return open(at + path + "/" + (v1 if c != "v2" else v2)).read().strip()
print(read("memory", "memory.limit_in_bytes", "memory.max"))
print(read("pids", "pids.max", "pids.max"))
print(read("cpu", "cpu.cfs_quota_us", "cpu.max").split()[0])
`

func TestRuntimesSeeLimits(t *testing.T) {
	i := boot(t, func(s *sandbox.Spec) {
		s.Cgroup = home(t).group(t, cgroup.Limits{MemoryBytes: 300 << 20, CPUs: 1.5, PIDs: 77})
	})
	out, code := run(t, i, sandbox.Command{Argv: []string{"python3", "-c", limits}})
	if code != 0 || out != "314572800\n77\n150000\n" {
		t.Errorf("%d: %q", code, out)
	}
	if out, _ := sh(t, i, "find /sys/fs/cgroup -writable -type f | wc -l"); out != "0\n" {
		t.Errorf("%s files can be written", out)
	}
}

func TestLimitOfProcessesIsTold(t *testing.T) {
	i := boot(t, func(s *sandbox.Spec) { s.Cgroup = home(t).group(t, cgroup.Limits{PIDs: 2}) })
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		if _, _, err := start(t, i, sandbox.Command{Argv: []string{"true"}}); !fault.Is(err, fault.Exhausted) {
			t.Errorf("one too many: %v", err)
		}
	}
	if err := i.Signal(p.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if _, code := run(t, i, sandbox.Command{Argv: []string{"true"}}); code != 0 {
		t.Errorf("true: %d", code)
	}
}

func TestClocksUntilFirstProcess(t *testing.T) {
	i := boot(t)
	if err := i.SetClocks(time.Hour, 2*time.Hour+time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := i.SetClocks(1000*time.Hour, -time.Second); err != nil {
		t.Fatal(err)
	}
	const script = `import time
print(int(time.clock_gettime(time.CLOCK_MONOTONIC)), int(time.clock_gettime(time.CLOCK_BOOTTIME)))`
	var mono, bootTime unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &bootTime)
	out, _ := run(t, i, sandbox.Command{Argv: []string{"python3", "-c", script}})
	var m, b int64
	if f := strings.Fields(out); len(f) == 2 {
		m, b = atoi(f[0])-mono.Sec, atoi(f[1])-bootTime.Sec
	}
	if m < 3_600_000 || m > 3_600_030 || b < -2 || b > 30 {
		t.Errorf("clocks are %d s and %d s ahead (%q)", m, b, out)
	}
	if err := i.SetClocks(0, 0); !fault.Is(err, fault.Conflict) {
		t.Errorf("after the first process: %v", err)
	}
}

func atoi(s string) (n int64) {
	for _, c := range s {
		n = n*10 + int64(c-'0')
	}
	return n
}

func TestDefaultFilesOnlyWhereMissing(t *testing.T) {
	f := home(t)
	root := f.root(t)
	for _, p := range []string{"etc/hostname", "etc/hosts", "etc/resolv.conf"} {
		_ = unix.Unlinkat(root, p, 0)
	}
	if err := unix.Symlinkat("/tmp/elsewhere", root, "etc/hosts"); err != nil {
		t.Fatal(err)
	}
	i := boot(t, func(s *sandbox.Spec) { unix.Close(s.Root); s.Root = root })
	if got := read(t, i, "/etc/hostname"); got != "box\n" {
		t.Errorf("hostname: %q", got)
	}
	if e, err := i.Readlink("/etc/hosts"); err != nil || e.Target != "/tmp/elsewhere" {
		t.Errorf("a link of the image's was replaced: %+v %v", e, err)
	}
	if _, err := i.Stat("/tmp/elsewhere", true); !fault.Is(err, fault.NotFound) {
		t.Errorf("a link of the image's was followed: %v", err)
	}
	if e, err := i.Stat("/etc/resolv.conf", true); err != nil || e.UID != 0 || e.Mode != unix.S_IFREG|0o644 {
		t.Errorf("resolv.conf: %+v %v", e, err)
	}
	if err := i.SetHostname("other"); err != nil {
		t.Fatal(err)
	}
	if out, _ := sh(t, i, "hostname; cat /proc/mounts | wc -l; df -k /dev/shm | tail -1 | awk '{print $2}'"); !strings.HasPrefix(out, "other\n") || !strings.HasSuffix(out, "\n65536\n") {
		t.Errorf("%q", out)
	}
}

// The supervisor's own end of things, for what package process restores.
func TestAdopt(t *testing.T) {
	i := boot(t)
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"sh", "-c", "(sleep 0.3; exit 9) & echo $!"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	<-p.Done()
	line := make([]byte, 16)
	n, err := r.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := i.Adopt(int(atoi(strings.TrimSpace(string(line[:n])))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Adopt(orphan.PID()); !fault.Is(err, fault.Exists) {
		t.Errorf("twice: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	select {
	case <-orphan.Done():
	case <-ctx.Done():
		t.Fatal("its end is not told")
	}
	if orphan.ExitCode() != 9 {
		t.Errorf("exit %d", orphan.ExitCode())
	}
}
