package memory

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sparse has a mapping of many GiB and writes to it, drops pages, splits it, and
// joins it again, at command. It tells where it did something.
const sparse = `
import ctypes, random, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
P, G = 4096, 1 << 30
rnd = random.Random(5)
size = 40 * G
m = libc.mmap(None, size, 3, 0x4022, -1, 0)
known = []
def write():
    o = rnd.randrange(size // P) * P
    if known and rnd.random() < .5: o = min(size - P, rnd.choice(known) - m + rnd.randrange(3) * P)
    ctypes.memset(m + o, rnd.randrange(1, 256), rnd.randrange(1, P)); known.append(m + o)
def step(k):
    global m, size
    if k == 0:
        for _ in range(5): libc.madvise(rnd.choice(known), P, 4)
    elif k == 1:
        a = m + rnd.randrange(size // P) * P
        assert libc.mprotect(a, P, 1) == 0 and libc.mprotect(a, P, 3) == 0
    elif k == 2:  # moved
        known.clear(); size -= G; n = libc.mremap(m, size + G, size, 1); m = n
    elif k == 3:  # replaced
        a = rnd.choice(known); libc.mmap(a, P, 3, 0x4032, -1, 0)
    elif k == 4:  # split for good, the lower part is small enough to be tracked whole
        assert libc.mprotect(m + G // 8, P, 1) == 0
    elif k == 5: assert libc.mprotect(m + G // 8, P, 3) == 0
    for _ in range(20): write()
step(9)
print('ready', flush=True)
for line in sys.stdin:
    step(int(line))
    print('done', *known[-4000:], flush=True)
`

// A mapping of many GiB costs what is in it, and of it what has changed; every
// page that was ever written is in the zygote.
func TestLargeMappings(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	g := startProgram(t, "python3", "-c", sparse)
	z, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Kill()
	rnd := rand.New(rand.NewPCG(3, 4))
	seen := map[uint64]bool{}
	for round := range 40 {
		k := rnd.IntN(12)
		fmt.Fprintln(g.in, k)
		g.in.Flush()
		l, err := g.out.ReadString('\n')
		if err != nil || !strings.HasPrefix(l, "done ") {
			t.Fatalf("program says %q: %v", l, err)
		}
		for _, w := range strings.Fields(l)[1:] {
			var at uint64
			fmt.Sscan(w, &at)
			seen[at&^(pageSize-1)] = true
		}
		if round == 20 {
			g.tr.Forget()
		}
		want := g.captureAt(a, seen)
		if n := g.delta.Bytes(); round > 0 && k > 5 && round != 20 && n > 4<<20 {
			t.Errorf("round %d: %d KB copied", round, n>>10)
		}
		if err := z.Update([]*Delta{&g.delta}, openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", z.Server().PID()))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, pageSize)
		for at, w := range want {
			if _, err := mem.ReadAt(got, int64(z.layout.park(g.delta.PID, at))); err != nil || !bytes.Equal(got, w) {
				t.Fatalf("round %d (step %d): page %#x differs (%v)", round, k, at, err)
			}
		}
		mem.Close()
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmPTE:")
	var kb int
	fmt.Sscan(rest, &kb)
	t.Logf("%d pages known, %d KB of page tables", len(seen), kb)
	if kb > 32<<10 {
		t.Errorf("the program's page tables have grown to %d KB", kb)
	}
}

// captureAt is capture for programs whose memory is too large to be compared
// whole: it returns the pages at some addresses that are mapped.
func (g *target) captureAt(a *Arena, at map[uint64]bool) map[uint64][]byte {
	g.t.Helper()
	want := map[uint64][]byte{}
	g.captureWith(a, func() {
		for addr := range at {
			if v := Find(g.tr.VMAs(), addr); v == nil || v.Shared {
				continue
			}
			b := make([]byte, pageSize)
			if _, err := unix.Pread(g.tr.mem, b, int64(addr)); err != nil {
				g.t.Fatal(err)
			}
			want[addr] = b
		}
	})
	g.whole()
	return want
}
