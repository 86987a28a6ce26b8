package sandbox_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// BenchmarkLife reports a boot, the running of true, and a close; beside them
// the floor of the second, true on the host.
func BenchmarkLife(b *testing.B) {
	f := home(b)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	var boots, execs, floors, closes []time.Duration
	for b.Loop() {
		root, group := f.root(b), f.group(b, cgroup.Limits{})
		t0 := time.Now()
		i, err := f.seed.Boot(sandbox.Spec{Root: root, Cgroup: group, Walls: f.walls})
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		for range 3 {
			t := time.Now()
			p, err := i.Exec(sandbox.Command{Argv: []string{"/bin/true"}}, [3]int{fd, fd, fd})
			if err != nil {
				b.Fatal(err)
			}
			<-p.Done()
			execs = append(execs, time.Since(t))
		}
		t := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		floors = append(floors, time.Since(t))
		t2 := time.Now()
		if err := i.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		boots, closes = append(boots, t1.Sub(t0)), append(closes, time.Since(t2))
	}
	for name, ds := range map[string][]time.Duration{"boot": boots, "exec": execs, "floor": floors, "close": closes} {
		slices.Sort(ds)
		b.ReportMetric(float64(ds[len(ds)/2].Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(ds[len(ds)/10].Microseconds()), name+"-p10-µs")
		b.ReportMetric(float64(ds[len(ds)*95/100].Microseconds()), name+"-p95-µs")
	}
}
