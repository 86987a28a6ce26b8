package memory

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/linux/uffd"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// program changes its own mappings in all the ways that programs do, a random
// few of them at each command.
const program = `
import ctypes, mmap, random, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
for f in libc.munmap, libc.madvise, libc.mprotect:
    f.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][:2 + (f is not libc.munmap)]
P = 4096
rnd = random.Random(int(sys.argv[1]))
heap = bytearray(int(sys.argv[2]) << 20)
for i in range(0, len(heap), P): heap[i] = 1
exe = open(sys.argv[3], 'rb')
maps, files = {}, []
def new(pages):
    a = libc.mmap(None, pages * P, 3, 0x22, -1, 0)
    maps[a] = pages
    return a
def poke(a, n=1): ctypes.memset(a, rnd.randrange(256), n)
def touch(a): poke(a + rnd.randrange(maps[a]) * P + rnd.randrange(P))
def step():
    k = rnd.randrange(12)
    a = rnd.choice(list(maps)) if maps else new(8)
    n = maps[a]
    if k == 0: touch(new(rnd.randrange(1, 600)))
    elif k == 1:
        libc.munmap(a, n * P); del maps[a]
    elif k == 2:  # replaced at the same address
        libc.mmap(a, n * P, 3, 0x32, -1, 0)
        if rnd.random() < .5: touch(a)
    elif k == 3:  # moved or grown
        m = rnd.randrange(1, 2 * n + 1)
        b = libc.mremap(a, n * P, m * P, 1)
        del maps[a]; maps[b] = m
    elif k == 4: libc.madvise(a, n * P, 4)  # MADV_DONTNEED
    elif k == 5:
        touch(a); libc.mprotect(a, n * P, 1)
        libc.mprotect(a, n * P, 3); touch(a)
    elif k == 6:  # pages that nobody may access, written to before
        touch(a); libc.mprotect(a, (n + 1) // 2 * P, 0)
        libc.mprotect(a, (n + 1) // 2 * P, 3)
    elif k == 7 and n > 2:
        touch(a); libc.mprotect(a, P, 0); maps.pop(a)  # stays so for good
    elif k == 8:  # private file mapping with a changed page
        f = libc.mmap(None, 8 * P, 3, 2, exe.fileno(), 0)
        poke(f + P, 7); files.append(f)
    elif k == 11 and files:  # its pages change, and become the file's again
        for f in files[-8:]:
            f += rnd.randrange(6) * P
            if rnd.random() < .4: poke(f, 2 * P)
            elif rnd.random() < .5: libc.madvise(f, 2 * P, 4)
            if rnd.random() < .3: ctypes.string_at(f, 2 * P)
    elif k == 9:
        keep.append(bytearray(rnd.randrange(1, 300000)))
        if len(keep) > 20: del keep[rnd.randrange(10)]
    else:
        for _ in range(50): heap[rnd.randrange(len(heap))] = rnd.randrange(256)
keep = []
print('ready', flush=True)
for line in sys.stdin:
    for _ in range(12): step()
    print('done', flush=True)
`

// target is a program under test, stopped and let go by the test's own thread.
type target struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    *bufio.Writer
	out   *bufio.Reader
	tr    *Tracker
	delta Delta

	failed error // of the last capture's copying
}

func start(t *testing.T, seed, heapMB int) *target {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mapped")
	if err := os.WriteFile(file, bytes.Repeat([]byte("mapped"), 8*pageSize/6+1), 0o600); err != nil {
		t.Fatal(err)
	}
	return startProgram(t, "python3", "-c", program, fmt.Sprint(seed), fmt.Sprint(heapMB), file)
}

// startProgram starts a program that says when it is ready, and when it has
// done a step.
func startProgram(t *testing.T, argv ...string) *target {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	g := &target{t: t, cmd: cmd, in: bufio.NewWriter(in), out: bufio.NewReader(out)}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	g.expect("ready\n")
	g.tr, err = NewTracker(cmd.Process.Pid, cmd.Process.Pid, NewScratch())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.tr.Close)
	return g
}

func (g *target) expect(want string) {
	g.t.Helper()
	if l, err := g.out.ReadString('\n'); l != want {
		g.t.Fatalf("program says %q (%v)", l, err)
	}
}

func (g *target) step() {
	g.t.Helper()
	fmt.Fprintln(g.in)
	g.in.Flush()
	g.expect("done\n")
}

// capture takes one checkpoint and returns what all private memory held.
func (g *target) capture(a *Arena) (want map[uint64][]byte) {
	g.t.Helper()
	g.captureWith(a, func() { want = contents(g.t, g.tr) })
	return want
}

// captureWith takes one checkpoint, and calls look while the program stands.
func (g *target) captureWith(a *Arena, look func()) {
	t := g.t
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(stop(g.tr))
	g.delta = Delta{}
	a.Reset()
	must(g.tr.Scan(&g.delta))
	if err := g.tr.Copy(&g.delta, a); err != nil {
		g.failed = err
	} else {
		look()
	}
	must(ptrace.Detach(g.cmd.Process.Pid, 0))
}

// stop stops the process of a tracker and attaches to it.
func stop(tr *Tracker) error {
	pid := tr.host
	if err := ptrace.Seize(pid, tracee.OptionsLive); err != nil {
		return err
	}
	if err := ptrace.Interrupt(pid); err != nil {
		return err
	}
	if st, err := ptrace.Wait(pid); err != nil || !st.Stopped() {
		return fmt.Errorf("wait for %d: %v %w", pid, st, err)
	}
	var regs tracee.Registers
	if err := ptrace.GetRegs(pid, &regs.PtraceRegs); err != nil {
		return err
	}
	if err := tr.Refresh(); err != nil || tr.Attached() {
		return err
	}
	p := tracee.Stopped(pid, regs)
	ip, err := FindSyscall(pid, tr.VMAs())
	if err != nil {
		return err
	}
	fd, err := p.Syscall(ip, unix.SYS_USERFAULTFD, uffd.Flags)
	if err != nil {
		return err
	}
	pf, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	own, err := unix.PidfdGetfd(pf, int(fd), 0)
	_ = unix.Close(pf)
	if err != nil {
		return err
	}
	if err := tr.Attach(own); err != nil {
		return err
	}
	if _, err := p.Syscall(ip, unix.SYS_CLOSE, uint64(fd)); err != nil {
		return err
	}
	return p.SetRegisters(regs)
}

// contents are all private memory of a stopped process, by mapping.
func contents(t *testing.T, tr *Tracker) map[uint64][]byte {
	t.Helper()
	want := map[uint64][]byte{}
	for _, v := range tr.VMAs() {
		if v.Kind == image.VDSO || v.Shared {
			continue
		}
		b := make([]byte, v.Len())
		n, err := unix.Pread(tr.mem, b, int64(v.Start))
		if n != len(b) && v.Kind != image.FileBacked { // a file may end before its mapping
			t.Fatalf("read %#x: %d of %d: %v", v.Start, n, len(b), err)
		}
		want[v.Start] = b[:max(n, 0)]
	}
	return want
}

// whole fails the test if the last capture failed.
func (g *target) whole() {
	g.t.Helper()
	if g.failed != nil {
		g.t.Fatal(g.failed)
	}
}

// compare checks every byte of the zygote.
func (g *target) compare(z *Zygote, want map[uint64][]byte) {
	g.t.Helper()
	compare(g.t, z, g.delta.PID, z.Windows(g.delta.PID), want)
}

// compare checks the memory of a process in a stub that holds it in pieces.
func compare(t *testing.T, z *Zygote, pid int, where []Window, want map[uint64][]byte) {
	t.Helper()
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", z.Server().PID()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	compared := 0
	for _, p := range where {
		v := Find(z.vmas[pid], p.Start)
		w := want[v.Start]
		if uint64(len(w)) <= p.Start-v.Start {
			continue
		}
		w = w[p.Start-v.Start : min(uint64(len(w)), p.End-v.Start)]
		got := make([]byte, len(w))
		if n, err := unix.Pread(fd, got, int64(p.At)); n != len(w) {
			t.Fatalf("process %d, mapping %+v, piece %+v: %d of %d bytes: %v", pid, v, p, n, len(w), err)
		}
		compared += len(w)
		if bytes.Equal(got, w) {
			continue
		}
		for i := 0; i < len(w); i += pageSize {
			if e := min(len(w), i+pageSize); !bytes.Equal(got[i:e], w[i:e]) {
				t.Fatalf("process %d, page %#x of %+v differs (piece %+v, loans %+v)", pid, p.Start+uint64(i), v, p, within(z.loans[pid], span{v.Start, v.End}))
			}
		}
	}
	for _, w := range want {
		compared -= len(w)
	}
	if compared != 0 {
		t.Fatalf("process %d: %d bytes more were compared than it has", pid, compared)
	}
}

func newSeed(t *testing.T) *tracee.Server {
	t.Helper()
	p, err := tracee.NewProgram()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, err := p.Spawn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func openPath(_ int, v *image.VMA) (int, error) {
	return unix.Open(v.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// Every byte of the program's private memory, as it stood at a checkpoint, is
// in the zygote of that checkpoint, and stays there when later ones are made.
func TestZygoteEqualsProgram(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	g := start(t, 1, 24)
	base, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Kill()
	type kept struct {
		z     *Zygote
		want  map[uint64][]byte
		delta Delta
	}
	var keep []kept
	var copied int64
	for round := range 40 {
		want := g.capture(a)
		g.whole()
		copied += g.delta.Bytes()
		if err := base.Update([]*Delta{&g.delta}, openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		z, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		defer z.Kill()
		g.compare(z, want)
		if round%10 == 0 {
			d := g.delta
			d.VMAs = append([]image.VMA(nil), d.VMAs...)
			keep = append(keep, kept{z, want, d})
		}
		g.step()
	}
	for _, k := range keep {
		g.delta = k.delta
		g.compare(k.z, k.want)
	}
	t.Logf("%d MB copied in 40 checkpoints", copied>>20)
}

// Two programs in one zygote: one of them is parked, and moves when it grows.
func TestZygoteOfSeveral(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var arenas [3]*Arena
	var gs [3]*target
	var wants [3]map[uint64][]byte
	for i := range gs {
		a, err := NewArena()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		arenas[i], gs[i] = a, start(t, i+2, 4)
	}
	z, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Kill()
	for round := range 15 {
		n := 3
		if round == 9 {
			n = 2 // the third has ended
		}
		var ds []*Delta
		for i, g := range gs[:n] {
			if n == 3 && round == 10 && i == 2 {
				g.tr.Forget()
			}
			wants[i] = g.capture(arenas[i])
			g.whole()
			ds = append(ds, &g.delta)
		}
		if err := z.Update(ds, openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for i, g := range gs[:n] {
			g.compare(z, wants[i])
			g.step()
		}
	}
}

// A large mapping of which little was ever touched costs that little, in the
// first capture and in a full one later.
func TestEmptyMemoryIsNotCaptured(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const large, most = 512 << 20, 64 << 20
	g := startProgram(t, "python3", "-c", `
import mmap, sys
m = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m[0] = m[-1] = 1
print('ready', flush=True)
for line in sys.stdin:
    m[len(m) // 2] = 1
    print('done', flush=True)
`, fmt.Sprint(large))
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for round := range 4 {
		if round == 2 {
			g.tr.Forget()
		}
		g.capture(a)
		g.whole()
		if n := g.delta.Bytes(); n > most {
			t.Errorf("round %d: %d MB were captured", round, n>>20)
		}
		g.step()
	}
}
