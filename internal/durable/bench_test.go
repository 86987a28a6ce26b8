package durable_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
)

// floor writes bytes into one file and syncs it.
func floor(b *testing.B, dir string, data []byte) {
	b.Helper()
	f, err := os.Create(filepath.Join(dir, "floor"))
	must(b, err)
	_, err = f.Write(data)
	must(b, err)
	must(b, f.Sync())
	must(b, f.Close())
	must(b, os.Remove(filepath.Join(dir, "floor")))
}

// BenchmarkCheckpoint writes and reads a heap of 100 MB with 1000 files, then 2 MB
// and 10 files of it, beside what a plain write of the same bytes takes. The
// metrics are ratios to that.
func BenchmarkCheckpoint(b *testing.B) {
	const heapPages, dirtyPages = 25600, 512
	dir := b.TempDir()
	at := filepath.Join(dir, "pool")
	must(b, os.Mkdir(at, 0o755))
	p, err := pool.Open(context.Background(), pool.Config{Path: filepath.Join(dir, "img"), MountPoint: at, Initial: 512 << 20})
	must(b, err)
	defer func() { must(b, p.Destroy()) }()
	poolFD, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(b, err)
	defer unix.Close(poolFD)
	req := btrfs.NewRequest(0)
	defer req.Close()
	must(b, req.Create(poolFD, "live"))
	live, err := unix.Open(filepath.Join(at, "live"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(b, err)
	defer unix.Close(live)
	w := newWorld(b, 1)
	heap := w.content(heapPages * page)
	source := bytesAt{0x7f0000000 * page, heap}
	write := func(i int) {
		must(b, os.WriteFile(filepath.Join(at, "live", fmt.Sprint("f", i)), w.content(4000), 0o644))
	}
	for i := range 1000 {
		write(i)
	}
	sums := map[string]time.Duration{}
	measure := func(name string, f func()) {
		begin, worked := time.Now(), processorTime(b)
		f()
		sums[name] += time.Since(begin)
		sums[name+" cpu"] += processorTime(b) - worked
	}
	n := 0
	snapshot := func() (string, *os.File) {
		n++
		name := fmt.Sprint("s", n)
		must(b, req.Snapshot(live, poolFD, name, true))
		f, err := os.Open(filepath.Join(at, name))
		must(b, err)
		return name, f
	}
	var first, second durable.Info
	rounds := 0
	for b.Loop() {
		rounds++
		r, err := durable.Open(filepath.Join(dir, fmt.Sprint("r", rounds)), durable.Options{})
		must(b, err)
		_, s1 := snapshot()
		all := durable.Span{Start: 0x7f0000000 * page, End: (0x7f0000000 + heapPages) * page}
		c := durable.Checkpoint{ID: "a", Upper: int(s1.Fd()), Memory: []durable.Pages{{PID: 2, Full: true, Changed: []durable.Span{all}, Source: source}}}
		measure("first", func() { first, err = r.Write(b.Context(), c); must(b, err) })
		var dirty []durable.Span
		for i := range uint64(dirtyPages) { // in runs of 8, all over the heap
			at := all.Start + (i/8*400+i%8)*page
			copy(heap[at-all.Start:], w.content(page))
			dirty = append(dirty, durable.Span{Start: at, End: at + page})
		}
		for i := range 10 {
			write(i * 90)
		}
		_, s2 := snapshot()
		c = durable.Checkpoint{ID: "b", Parent: "a", Upper: int(s2.Fd()), Memory: []durable.Pages{{PID: 2, Mapped: []durable.Span{all}, Changed: dirty, Source: source}}}
		measure("second", func() { second, err = r.Write(b.Context(), c); must(b, err) })
		s1.Close()
		s2.Close()
		s, err := r.Get(b.Context(), "b")
		must(b, err)
		measure("pages", func() { must(b, s.Pages(b.Context(), 2, func(durable.Run) error { return nil })) })
		to := filepath.Join(at, fmt.Sprint("restored", rounds))
		must(b, os.Mkdir(to, 0o755))
		toDir, err := os.Open(to)
		must(b, err)
		measure("files", func() { must(b, s.RestoreUpper(b.Context(), int(toDir.Fd()))) })
		toDir.Close()
		must(b, os.RemoveAll(to))
		must(b, s.Close())
		must(b, r.Close())
		must(b, os.RemoveAll(filepath.Join(dir, fmt.Sprint("r", rounds))))
		measure("floor100", func() { floor(b, dir, heap) })
		measure("floor2", func() { floor(b, dir, heap[:dirtyPages*page+40_000]) })
	}
	ms := func(name string) float64 { return float64(sums[name].Microseconds()) / 1000 / float64(rounds) }
	b.Logf("first %.1f ms, floor %.1f ms, read %d, stored %d; second %.1f ms, floor %.1f ms, read %d, stored %d; pages %.1f ms, files %.1f ms",
		ms("first"), ms("floor100"), first.ReadBytes, first.NewBytes, ms("second"), ms("floor2"), second.ReadBytes, second.NewBytes, ms("pages"), ms("files"))
	b.Logf("processor time: first %.1f ms, second %.1f ms, pages %.1f ms, files %.1f ms; plain writes %.1f ms and %.1f ms",
		ms("first cpu"), ms("second cpu"), ms("pages cpu"), ms("files cpu"), ms("floor100 cpu"), ms("floor2 cpu"))
	b.ReportMetric(ms("first")/ms("floor100"), "first/floor")
	b.ReportMetric(ms("second")/ms("floor2"), "second/floor")
	b.ReportMetric(ms("pages")/ms("floor100"), "pages/floor")
	for i := range n {
		must(b, btrfs.Destroy(poolFD, fmt.Sprint("s", i+1)))
	}
	must(b, btrfs.Destroy(poolFD, "live"))
}

// processorTime is what this process has used of the processors, which is told
// on a busy machine as well.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bytesAt is memory in one piece.
type bytesAt struct {
	base int64
	b    []byte
}

func (m bytesAt) ReadAt(b []byte, at int64) (int, error) { return copy(b, m.b[at-m.base:]), nil }
