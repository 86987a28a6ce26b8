package memory

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// family is a program whose processes fork, change what they share, and end, at
// command.
const family = `
import os
SLOTS = 7
cmd = [os.pipe() for _ in range(SLOTS)]
ans = os.pipe()
slot = 0
def serve():
    global slot, rnd
    while True:
        c = os.read(cmd[slot][0], 1)
        if c == b'q': os._exit(0)
        if c == b's':
            for _ in range(12): step()
        elif c == b'h':  # the heap, densely
            o = rnd.randrange(len(heap) // 2)
            heap[o:o + len(heap) // 4] = bytes([rnd.randrange(256)]) * (len(heap) // 4)
        elif c == b'x': os.execv(sys.executable, [sys.executable, '-c', 'import os, sys; os.write(int(sys.argv[2]), b"%8d" % os.getpid()); os.read(int(sys.argv[1]), 1)', str(cmd[slot][0]), str(ans[1])])
        elif c >= b'\x80':
            if os.fork() == 0:
                slot = c[0] - 128; rnd = random.Random(slot * 1000 + rnd.randrange(1000))
        os.write(ans[1], b'%8d' % os.getpid())
for a, b in cmd + [ans]: os.set_inheritable(a, True); os.set_inheritable(b, True)
if os.fork() == 0: serve()
print('ready', flush=True)
for line in sys.stdin:
    k, c = map(int, line.split())
    os.write(cmd[k][1], bytes([c]))
    n = 0 if c == 113 else 2 if c >= 128 else 1
    print('done', *[int(os.read(ans[0], 8)) for _ in range(n)], flush=True)
`

// kin are the processes of such a program.
type kin struct {
	t    *testing.T
	in   io.Writer
	out  *bufio.Reader
	all  []*relative // in the order that they were forked in
	free []int       // slots
}

type relative struct {
	slot, parent int // slot of the parent
	tr           *Tracker
	delta        Delta
	want         map[uint64][]byte
	executed     bool
}

func startKin(t *testing.T, seed, heapMB int) *kin {
	t.Helper()
	code := strings.SplitN(program, "keep = []", 2)[0] + "keep = []\n" + family
	file := t.TempDir() + "/mapped"
	if err := os.WriteFile(file, make([]byte, 8*pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", "-c", code, fmt.Sprint(seed), fmt.Sprint(heapMB), file)
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
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	k := &kin{t: t, in: in, out: bufio.NewReader(out)}
	for i := 6; i > 0; i-- {
		k.free = append(k.free, i)
	}
	if l, err := k.out.ReadString('\n'); l != "ready\n" {
		t.Fatalf("program says %q (%v)", l, err)
	}
	t.Cleanup(func() {
		for _, r := range k.all {
			r.tr.Close()
			_ = unix.Kill(r.tr.host, unix.SIGKILL)
		}
	})
	k.join(0, -1, k.tell(0, 'h')[0])
	return k
}

// tell gives a process a command, and returns who answers.
func (k *kin) tell(slot int, c byte) (pids []int) {
	k.t.Helper()
	fmt.Fprintln(k.in, slot, c)
	l, err := k.out.ReadString('\n')
	words := strings.Fields(l)
	if err != nil || words[0] != "done" {
		k.t.Fatalf("program says %q (%v)", l, err)
	}
	for _, w := range words[1:] {
		var pid int
		fmt.Sscan(w, &pid)
		pids = append(pids, pid)
	}
	return pids
}

func (k *kin) join(slot, parent, pid int) {
	k.t.Helper()
	tr, err := NewTracker(pid, pid, NewScratch())
	if err != nil {
		k.t.Fatal(err)
	}
	k.all = append(k.all, &relative{slot: slot, parent: parent, tr: tr})
}

// fork has a process fork one more.
func (k *kin) fork(r *relative) {
	k.t.Helper()
	if len(k.free) == 0 || r.executed {
		return
	}
	s := k.free[len(k.free)-1]
	k.free = k.free[:len(k.free)-1]
	for _, pid := range k.tell(r.slot, byte(128+s)) {
		if pid != r.tr.host {
			k.join(s, r.slot, pid)
		}
	}
}

// end has a process end and waits for it.
func (k *kin) end(i int) {
	k.t.Helper()
	r := k.all[i]
	pf, err := unix.PidfdOpen(r.tr.host, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	defer unix.Close(pf)
	k.tell(r.slot, 'q')
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(pf), Events: unix.POLLIN}}, 10000); err != nil {
		k.t.Fatal(err)
	}
	r.tr.Close()
	k.all = append(k.all[:i:i], k.all[i+1:]...)
	k.free = append(k.free, r.slot)
}

// capture takes a checkpoint of all, as package process does.
func (k *kin) capture(a *Arena) (ds []*Delta) {
	k.t.Helper()
	must := func(err error) {
		k.t.Helper()
		if err != nil {
			k.t.Fatal(err)
		}
	}
	a.Reset()
	born := false
	for _, r := range k.all {
		must(stop(r.tr))
		r.delta = Delta{}
		must(r.tr.Scan(&r.delta))
		r.delta.VMAs = append([]image.VMA(nil), r.delta.VMAs...)
		born = born || r.delta.Full
		ds = append(ds, &r.delta)
	}
	for i, r := range k.all {
		var lenders []*Tracker
		for _, q := range k.all[:i] {
			lenders = append(lenders, q.tr)
		}
		must(r.tr.Borrow(&r.delta, lenders))
	}
	for _, r := range k.all {
		r.delta.Forked = born
		must(r.tr.Copy(&r.delta, a))
		r.want = contents(k.t, r.tr)
	}
	for _, r := range k.all {
		must(ptrace.Detach(r.tr.host, 0))
	}
	return ds
}

// place makes a clone of the zygote the memory of one process, as restore does,
// and checks every byte where it belongs. Each mapping is whole unless the base
// has been replaced by a fork without the program's being one, too: the kernel
// does not join a new mapping to one that was forked.
func place(t *testing.T, z *Zygote, r *relative, whole bool) *Zygote {
	t.Helper()
	c, err := z.Fork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	held := map[int]bool{}
	for pid := range z.vmas {
		held[pid] = true
	}
	b := tracee.NewBatch()
	room := func() (*tracee.Batch, error) {
		if !b.Full(16, 256) {
			return b, nil
		}
		err := c.server.Do(b)
		b = tracee.NewBatch()
		return b, err
	}
	p := &image.Process{PID: r.tr.pid, Memory: image.Memory{VMAs: r.delta.VMAs}}
	if err := z.Place(room, p, held); err != nil {
		t.Fatal(err)
	}
	if err := c.server.Do(b); err != nil {
		t.Fatal(err)
	}
	var where []Window
	for _, v := range z.vmas[r.tr.pid] {
		where = append(where, Window{v.Start, v.End, v.Start})
	}
	compare(t, c, r.tr.pid, where, r.want)
	text, err := readFile(c.server.PID(), "maps")
	if err != nil {
		t.Fatal(err)
	}
	now, err := ParseMaps(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range z.vmas[r.tr.pid] {
		if n := Find(now, v.Start); n == nil || whole && n.End < v.End || n.Prot != v.Prot || v.Kind != image.Stack && n.Kind != v.Kind {
			t.Fatalf("process %d: mapping %+v has become %+v", r.tr.pid, v, n)
		}
	}
	return c
}

// Every byte of processes that fork, share, write, move, drop, execute and end
// is in the zygote of each checkpoint, and in what is made of it.
func TestZygoteOfForkedProcesses(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	const heap = 4
	k := startKin(t, 7, heap)
	base, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { base.Kill() }()
	rnd := rand.New(rand.NewPCG(1, 2))
	var copied, lent uint64
	for round := range 16 {
		ds := k.capture(a)
		for _, d := range ds {
			copied += uint64(d.Bytes())
		}
		if err := base.Update(ds, openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for _, r := range k.all {
			compare(t, base, r.tr.pid, base.Windows(r.tr.pid), r.want)
		}
		for _, ls := range base.loans {
			for _, l := range ls {
				lent += l.end - l.start
			}
		}
		z, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			r := k.all[rnd.IntN(len(k.all))]
			if i == 0 {
				r = k.all[len(k.all)-1]
			}
			place(t, z, r, round < 5).Kill()
		}
		if round%5 == 4 { // as after a rollback
			base.Kill()
			base = z
		} else {
			z.Kill()
		}
		for _, r := range k.all {
			if !r.executed && rnd.IntN(3) > 0 {
				k.tell(r.slot, 's')
			}
		}
		switch n := rnd.IntN(10); {
		case n < 5:
			k.fork(k.all[rnd.IntN(len(k.all))])
		case n < 7 && len(k.all) > 2:
			k.end(rnd.IntN(len(k.all)))
		case n == 7:
			if r := k.all[rnd.IntN(len(k.all))]; !r.executed {
				k.tell(r.slot, 'h')
			}
		case n == 8 && len(k.all) > 4:
			if r := k.all[rnd.IntN(len(k.all))]; !r.executed {
				k.tell(r.slot, 'x')
				r.executed = true
			}
		}
	}
	t.Logf("%d processes at last; %d MB copied, %d MB lent in 16 checkpoints", len(k.all), copied>>20, lent>>20)
	if lent < 16*heap<<20 {
		t.Errorf("only %d MB were lent", lent>>20)
	}
}

// Workers that share a heap cost one heap and what they wrote: in the capture,
// in the zygote, and in what is made of it.
func TestSharedPagesAreKeptOnce(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	const heap, workers = 48, 4
	k := startKin(t, 3, heap)
	for range workers {
		k.fork(k.all[0])
	}
	base, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { base.Kill() }()
	for round := range 3 {
		var copied int64
		ds := k.capture(a)
		for _, d := range ds {
			copied += d.Bytes()
		}
		if err := base.Update(ds, openPath); err != nil {
			t.Fatal(err)
		}
		z, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		var pss int64
		placed := []*Zygote{}
		for _, r := range k.all {
			placed = append(placed, place(t, z, r, round == 0))
		}
		old := base // as after a rollback
		base = z
		old.Kill()
		for _, p := range append(placed, z) {
			pss += residentShare(t, p)
		}
		for _, p := range placed {
			p.Kill()
		}
		t.Logf("round %d: %d MB copied; zygote and its %d processes: Pss %d MB", round, copied>>20, len(k.all), pss>>20)
		if most := int64(2 * heap << 20); copied > most || pss > most {
			t.Errorf("round %d: %d MB copied, Pss %d MB, at most %d", round, copied>>20, pss>>20, most>>20)
		}
		for _, r := range k.all {
			k.tell(r.slot, 's')
		}
	}
}

// residentShare is the proportional share of memory (Pss) of a zygote, in bytes.
func residentShare(t *testing.T, z *Zygote) int64 {
	t.Helper()
	text, err := readFile(z.Server().PID(), "smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range strings.Split(string(text), "\n") {
		var kb int64
		if n, _ := fmt.Sscanf(l, "Pss: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Fatal("no Pss")
	return 0
}
