package memory

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDenseRegions(t *testing.T) {
	const mb = 1 << 20
	d := dense{}
	d.note(span{0, 4 * mb}, 0, 5*mb)                      // two whole regions
	d.note(span{6 * mb, 6*mb + pageSize}, 6*mb, 2*mb)     // one page
	d.note(span{8 * mb, 9 * mb}, 8*mb, 2*mb)              // half
	d.note(span{12*mb - mb/2, 14 * mb}, 12*mb-mb/2, 4*mb) // begins within a region
	for i := range uint64(40) {
		d.note(span{(100 + 2*i) * mb, (101+2*i)*mb + pageSize}, 100*mb, 100*mb)
	}
	got := d.worth()
	want := []span{{0, 4 * mb}, {12 * mb, 14 * mb}, {100 * mb, (100 + 2*denseRegions) * mb}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, not %v", got, want)
	}
}

// A heap of which every second page was written at one checkpoint is in huge
// pages again, one of which a few pages were written is not.
func TestDenseWritesKeepHugePages(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m, err := unix.Mmap(-1, 0, 2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(m) }()
	for i := range m {
		m[i] = 1 // where no page is, nothing can be collapsed: EINVAL, too
	}
	if err := unix.Madvise(m, unix.MADV_COLLAPSE); err == unix.EINVAL {
		t.Skip("MADV_COLLAPSE: the kernel was built without huge pages")
	}
	g := startProgram(t, "python3", "-c", `
import sys
b = bytearray(64 << 20)
def write(start, end, step):
    for i in range(start << 20, end << 20, step): b[i] = b[i] + 1 & 255
write(0, 64, 4096)
print('ready', flush=True)
for line in sys.stdin:
    write(*map(int, line.split()))
    print('done', flush=True)
`)
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	base, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Kill()
	round := func(what string) int {
		t.Helper()
		g.capture(a)
		g.whole()
		if err := base.Update([]*Delta{&g.delta}, openPath); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		z, err := base.Fork()
		took := time.Since(begin)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(z.Kill)
		n := hugeMB(t, base)
		t.Logf("%s: %d MB in huge pages, forked in %v", what, n, took)
		return n
	}
	first := round("first")
	if first < 16 {
		t.Errorf("%d MB of 64 in huge pages after the first checkpoint", first)
	}
	fmt.Fprintln(g.in, "0 64 65536")
	g.in.Flush()
	g.expect("done\n")
	scattered := round("scattered")
	fmt.Fprintln(g.in, "8 32 8192")
	g.in.Flush()
	g.expect("done\n")
	if n := round("dense"); n < scattered+8 {
		t.Errorf("%d MB in huge pages after dense writes to 24 MB, %d before", n, scattered)
	}
}

// hugeMB is how much of a zygote's memory is in huge pages.
func hugeMB(t *testing.T, z *Zygote) int {
	t.Helper()
	text, err := readFile(z.server.PID(), "smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "AnonHugePages:")
	var kb int
	fmt.Sscan(rest, &kb)
	return kb >> 10
}
