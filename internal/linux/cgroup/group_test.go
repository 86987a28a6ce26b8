package cgroup_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
)

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestFreezeStopsAndThawResumes(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{})
	start(t, g, "spin")
	if err := g.Freeze(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if ok, err := g.Frozen(); !ok || err != nil {
		t.Fatalf("frozen: %v, %v", ok, err)
	}
	a, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // nothing may run in it
	b, _ := g.Stats()
	if d := b.CPU - a.CPU; d > 5*time.Millisecond {
		t.Errorf("used %v while frozen", d)
	}
	if err := g.Thaw(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); ; {
		c, err := g.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if c.CPU > b.CPU+5*time.Millisecond {
			break
		}
		if time.Now().After(end) {
			t.Fatal("does not run after thaw")
		}
	}
}

func TestFreezeDoesNotAllocate(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{})
	start(t, g, "sleep")
	tids := make([]int, 0, 1024)
	n := testing.AllocsPerRun(20, func() {
		if err := g.Freeze(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		if tids, _ = g.AppendThreads(tids[:0]); len(tids) < 2 {
			t.Fatal(tids)
		}
		if err := g.Thaw(); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestAppendThreadsListsEveryThread(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{})
	var want []int
	var pids []int
	for range 3 {
		c, _, _ := start(t, g, "sleep")
		pids = append(pids, c.Process.Pid)
	}
	if err := g.Freeze(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Thaw() }()
	for _, pid := range pids {
		es, err := os.ReadDir(filepath.Join("/proc", itoa(pid), "task"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			want = append(want, atoi(e.Name()))
		}
	}
	got, err := g.AppendThreads(nil)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestKillEndsAForkingTree(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{PIDs: 60})
	_, _, out := start(t, g, "fork")
	if n := atoi(strings.TrimSpace(strings.TrimPrefix(out, "ready"))); n >= 60 || n < 10 {
		t.Errorf("started %d processes under a limit of 60 tasks", n)
	}
	s, err := g.Stats()
	if err != nil || s.PIDs < 10 || s.PIDs > 60 {
		t.Errorf("pids %d, %v", s.PIDs, err)
	}
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := g.Remove(short); !fault.Is(err, fault.Deadline) {
		t.Errorf("removed while it runs: %v", err)
	}
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(soon(t)); err != nil {
		t.Errorf("second removal: %v", err)
	}
	if names, _ := p.Names(); len(names) > 0 {
		t.Errorf("left %v", names)
	}
}

func TestMemoryLimitKillsAndIsReported(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{MemoryBytes: 64 << 20})
	w, err := cgroup.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var told atomic.Uint64
	stop, err := w.OOM(g, func(n uint64) { told.Store(n) })
	if err != nil {
		t.Fatal(err)
	}
	c, in, _ := start(t, g, "hog")
	if _, err := in.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	err = c.Wait()
	if x, ok := err.(*exec.ExitError); !ok || !x.Sys().(interface{ Signaled() bool }).Signaled() {
		t.Errorf("the hog ended with %v", err)
	}
	stop()
	stop()
	if n, err := g.OOMKills(); n == 0 || err != nil {
		t.Errorf("OOM kills %d, %v", n, err)
	}
	if told.Load() == 0 {
		t.Error("the watcher told nothing")
	}
	s, err := g.Stats()
	if err != nil || s.OOMKills == 0 || s.MemoryMax > 65<<20 || s.MemoryMax < 32<<20 {
		t.Errorf("stats %+v, %v", s, err)
	}
}

func TestWatcherTellsWithoutStop(t *testing.T) {
	p := setup(t)
	w, err := cgroup.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	told := make(chan uint64, 10)
	g := newGroup(t, p, "g", cgroup.Limits{MemoryBytes: 32 << 20})
	stop, err := w.OOM(g, func(n uint64) { told <- n })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	c, in, _ := start(t, g, "hog")
	_, _ = in.WriteString("go\n")
	_ = c.Wait()
	select {
	case n := <-told:
		if n == 0 {
			t.Error("told of no kill")
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing was told")
	}
}

func TestCPULimitBites(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{CPUs: 0.2})
	start(t, g, "spin")
	a, _ := g.Stats()
	time.Sleep(time.Second) // the measured interval
	b, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if used := b.CPU - a.CPU; used > 400*time.Millisecond || used < 20*time.Millisecond {
		t.Errorf("used %v of a second with 0.2 CPUs", used)
	}
	if err := g.SetLimits(cgroup.Limits{CPUs: 1, MemoryBytes: 1 << 30, PIDs: 100}); err != nil {
		t.Error(err)
	}
	if err := g.SetLimits(cgroup.Limits{}); err != nil {
		t.Error(err)
	}
	if g.Limits() != (cgroup.Limits{}) {
		t.Errorf("limits %+v", g.Limits())
	}
}

func TestNewGroupRefuses(t *testing.T) {
	p := setup(t)
	newGroup(t, p, "g", cgroup.Limits{})
	if _, err := p.NewGroup("g", cgroup.Limits{}); !fault.Is(err, fault.Exists) {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := p.NewGroup("../g", cgroup.Limits{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a path: %v", err)
	}
	if _, err := p.NewGroup("h", cgroup.Limits{CPUs: -1}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a negative limit: %v", err)
	}
	if names, _ := p.Names(); !slices.Equal(names, []string{"g"}) {
		t.Errorf("names %v", names)
	}
}

// A daemon that died left a running process in a nested group.
func TestParentRemoveCleansUpAfterACrash(t *testing.T) {
	p := setup(t)
	fam, err := p.Child("family")
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, fam, "g", cgroup.Limits{CPUs: 1})
	c, _, _ := start(t, g, "sleep")
	// One process is in v1 hierarchies alone, as if its maker had died
	// between the clone and the move.
	half := exec.Command("/bin/sleep", "60")
	if err := half.Start(); err != nil {
		t.Fatal(err)
	}
	if g.NeedsAdd() {
		if err := g.Add(half.Process.Pid); err != nil {
			t.Fatal(err)
		}
	} else if err := g.Move(half.Process.Pid); err != nil {
		t.Fatal(err)
	}
	again, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	left, err := again.OpenParent(strings.TrimPrefix(filepath.Base(p.Path()), "sandtree-"))
	if err != nil {
		t.Fatal(err)
	}
	if err := left.Remove(soon(t)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*exec.Cmd{c, half} {
		if err := c.Wait(); err == nil {
			t.Error("a process ended by itself")
		}
	}
}

func TestViewShowsTheLimits(t *testing.T) {
	p := setup(t)
	g := newGroup(t, p, "g", cgroup.Limits{MemoryBytes: 64 << 20, CPUs: 1.5, PIDs: 77})
	seen := map[string]string{}
	for _, b := range g.View() {
		if !strings.HasPrefix(b.InsidePath, "/sys/fs/cgroup") {
			t.Errorf("%+v", b)
		}
		for _, f := range []string{"memory.max", "memory.limit_in_bytes", "cpu.max", "cpu.cfs_quota_us", "pids.max"} {
			if x, err := os.ReadFile(filepath.Join(b.HostPath, f)); err == nil {
				seen[f] = strings.TrimSpace(string(x))
			}
		}
	}
	if seen["memory.max"] != "67108864" && seen["memory.limit_in_bytes"] != "67108864" ||
		seen["cpu.max"] != "150000 100000" && seen["cpu.cfs_quota_us"] != "150000" || seen["pids.max"] != "77" {
		t.Errorf("seen %v", seen)
	}
}

func TestRestrictDevices(t *testing.T) {
	p := setup(t)
	whole, err := p.Child("whole")
	if err != nil {
		t.Fatal(err)
	}
	if err := whole.RestrictDevices(); err != nil {
		t.Fatal(err)
	}
	one := newGroup(t, p, "one", cgroup.Limits{})
	for range 2 { // again replaces it
		t0 := time.Now()
		if err := one.RestrictDevices(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%v", time.Since(t0))
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := unix.Mknod(disk, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))); err != nil {
		t.Fatal(err)
	}
	kmsg := filepath.Join(dir, "kmsg")
	if err := unix.Mknod(kmsg, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 11))); err != nil {
		t.Fatal(err)
	}
	open := []string{"/dev/null", "/dev/zero", "/dev/urandom", "/dev/ptmx", disk, kmsg}
	want := "/dev/null <nil>\n/dev/zero <nil>\n/dev/urandom <nil>\n/dev/ptmx <nil>\n" +
		disk + " operation not permitted\n" + kmsg + " operation not permitted\nwhiteout <nil>\ndisk operation not permitted\n"
	for _, g := range []*cgroup.Group{one, newGroup(t, whole, "g", cgroup.Limits{})} {
		if _, _, out := start(t, g, "open", open...); out != want {
			t.Errorf("got %s", out)
		}
	}
}

func TestRealtimeBudget(t *testing.T) {
	p := setup(t)
	fam, err := p.Child("family")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []cgroup.Limits{{}, {CPUs: 1}} {
		g := newGroup(t, fam, "g"+itoa(int(l.CPUs)), l)
		revoke, err := g.AllowRealtime(cgroup.RealtimeBudget)
		if err != nil {
			t.Fatal(err)
		}
		// The part adds itself before it asks: start adds it while it starts.
		if c, _, out := start(t, g, "fifo"); strings.TrimSpace(out) != "0" {
			t.Errorf("limits %+v: SCHED_FIFO gave errno %s", l, out)
		} else {
			_ = c.Wait()
		}
		for range 2 {
			if err := revoke(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFavorDynamicMoves(t *testing.T) {
	p := setup(t)
	c, err := cgroup.FavorDynamicMoves()
	if fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a := newGroup(t, p, "a", cgroup.Limits{})
	b := newGroup(t, p, "b", cgroup.Limits{})
	cmd, _, _ := start(t, a, "sleep")
	var times []time.Duration
	for i := range 20 {
		time.Sleep(50 * time.Millisecond) // moves that come alone are the slow ones
		to := []*cgroup.Group{b, a}[i%2]
		t0 := time.Now()
		if err := to.Move(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(t0))
	}
	slices.Sort(times)
	t.Logf("move in %d hierarchies: median %v, worst %v", len(a.View()), times[10], times[19])
	// Without it a move waits for RCU, 8 ms and more. Machines differ: it is
	// slow where it takes longer than to start a program, too.
	t0 := time.Now()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	if program := time.Since(t0); times[10] > 3*time.Millisecond && times[10] > program {
		t.Errorf("median %v, and %v to start a program", times[10], program)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
