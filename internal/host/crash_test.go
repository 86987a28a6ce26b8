package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
	supervisorcontrol "github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

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
