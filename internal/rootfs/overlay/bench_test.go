package overlay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/rootfs/overlay"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/rootfs/rootfstest"
)

// BenchmarkStore measures what the engine waits for, and prints the median and
// the 95th percentile of each. Run it with -benchtime=100x.
func BenchmarkStore(b *testing.B) {
	dir := b.TempDir()
	mnt, layer := filepath.Join(dir, "mnt"), filepath.Join(dir, "layer")
	for _, d := range []string{mnt, layer} {
		if err := os.Mkdir(d, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	p, err := pool.Open(b.Context(), pool.Config{Path: filepath.Join(dir, "pool.img"), MountPoint: mnt})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Destroy(); err != nil {
			b.Error(err)
		}
	})
	s, err := overlay.Open(overlay.Config{Pool: mnt, Layers: []string{layer}, UserNS: rootfstest.UserNS(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	n := 0
	next := func(kind string) string { n++; return fmt.Sprintf("%s-%d", kind, n) }
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	root := func(id string) rootfstest.Root {
		fd, err := s.MountRoot(id)
		must(err)
		return rootfstest.NewRoot(b, fd)
	}
	q, err := s.NewQuota(1 << 30)
	must(err)
	must(s.CreateUpper("live", q))
	live := root("live")
	b.Cleanup(live.Close)
	dirty := func() {
		live.Do(func() error {
			for i := range 10 {
				if err := os.WriteFile(live.Path(fmt.Sprintf("/f%d", i)), fmt.Appendf(nil, "%4000d", n), 0o644); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(s.Snapshot("live", "base"))
	for _, c := range []struct {
		name    string
		prepare func()
		run     func()
	}{
		{"CreateAndMount", func() {}, func() {
			id := next("sb")
			must(s.CreateUpper(id, q))
			unix.Close(root(id).FD)
		}},
		{"Snapshot", dirty, func() { must(s.Snapshot("live", next("cp"))) }},
		{"Presync", dirty, func() { must(s.Presync()) }},
		{"SnapshotAfterPresync", func() { dirty(); must(s.Presync()) }, func() { must(s.Snapshot("live", next("cp"))) }},
		{"CloneAndMount", func() {}, func() {
			id := next("sb")
			must(s.Clone("base", id, q))
			unix.Close(root(id).FD)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var ts []time.Duration
			for b.Loop() {
				b.StopTimer()
				c.prepare()
				b.StartTimer()
				start := time.Now()
				c.run()
				ts = append(ts, time.Since(start))
			}
			slices.Sort(ts)
			b.ReportMetric(float64(ts[len(ts)/2].Microseconds())/1e3, "p50-ms")
			b.ReportMetric(float64(ts[len(ts)*95/100].Microseconds())/1e3, "p95-ms")
		})
	}
}
