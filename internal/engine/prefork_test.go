package engine_test

import (
	"fmt"
	"testing"
	"time"
)

// prefork is a server of some workers that share what their parent made before
// it forked. Each worker answers with a checksum of all of it; some write a
// little to it, and move and drop memory, at each round.
const prefork = `
import zlib, random
S, W = %d << 20, %d
b = bytearray(S)
for i in range(0, S, 4096): b[i] = i >> 12 & 255
moved = libc.mmap(None, 1 << 20, 3, 0x22, -1, 0); ctypes.memset(moved, 0x6d, 1 << 20)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def content():
    return zlib.crc32(ctypes.string_at(moved, 1 << 20), zlib.crc32(b))
def write(i, n):
    global moved
    r = random.Random(1000 * n + i)
    for _ in range(100): b[r.randrange(S)] = r.randrange(256)
    o = r.randrange(S // 2); b[o:o + 40000] = bytes([n & 255]) * 40000
    k = (i + n) %% 5
    if k == 0: call(libc.madvise, moved + 4096 * r.randrange(200), 4096 * 50, 4)
    if k == 1: moved = libc.mremap(moved, 1 << 20, 1 << 21, 1); ctypes.memset(moved + (1 << 20), i, 5000)
    if k == 2: call(libc.mprotect, moved + 4096, 4096, 1)
    if k == 3: call(libc.mprotect, moved + 4096, 4096, 3); ctypes.memset(moved + 4096, n & 255, 10)
    return content()
class Worker:
    def __init__(self, i):
        self.r, w = os.pipe(); r, self.w = os.pipe()
        self.i = i
        self.pid = child(lambda: self.serve(r, w))
        os.close(r); os.close(w)
    def serve(self, r, w):
        while True:
            n = struct.unpack('q', os.read(r, 8))[0]
            if n < 0: os._exit(7)
            os.write(w, struct.pack('Q', write(self.i, n) if n else content()))
    def ask(self, n):
        os.write(self.w, struct.pack('q', n)); return struct.unpack('Q', os.read(self.r, 8))[0]
workers = [Worker(i) for i in range(W)]
def contents(n=0): return [w.ask(n) for w in workers] + [write(99, n) if n and n %% 2 else content()]
`

// residentShare says how many processes there are beside PID 1, and the sum of
// their proportional shares of memory (Pss), in MB.
func residentShare(x *talk) (processes, mb int) {
	x.t.Helper()
	_, err := fmt.Sscanf(x.must("resident share", `
def pss(pid):
    for l in open('/proc/%s/smaps_rollup' % pid):
        if l.startswith('Pss:'): return int(l.split()[1])
pids = [p for p in os.listdir('/proc') if p.isdigit() and p != '1']
len(pids), sum(pss(p) for p in pids) >> 10
`), "(%d, %d)", &processes, &mb)
	check(x.t, err)
	return processes, mb
}

// What processes share after fork is captured once and shared again in what is
// restored, from the first checkpoint and from later ones.
func TestPreforkServerKeepsWhatItShares(t *testing.T) {
	const heap, workers = 48, 5
	h := newHost(t, withoutStandbys)
	box := h.create()
	x := h.obedient(box)
	x.must("start", fmt.Sprintf(prefork, heap, workers))
	was := x.must("contents", "contents()")
	first := h.checkpoint(box)
	t.Logf("first checkpoint: %d MB copied, frozen %v", first.DirtyBytes>>20, time.Duration(first.FrozenNS))
	if most := int64(heap+heap/2) << 20; first.DirtyBytes > most {
		t.Errorf("the first checkpoint copied %d MB", first.DirtyBytes>>20)
	}
	all := func(x *talk, what string) {
		t.Helper()
		n, mb := residentShare(x)
		if n != workers+1 {
			t.Fatalf("%s: %d processes, not %d", what, n, workers+1)
		}
		t.Logf("%s: Pss %d MB", what, mb)
		if mb > 2*heap {
			t.Errorf("%s: Pss %d MB", what, mb)
		}
	}
	all(x, "live")
	if now := x.must("contents after", "contents()"); now != was {
		t.Fatalf("the checkpoint changed what they have: %s, before %s", now, was)
	}
	at := first
	for round := 1; round <= 5; round++ {
		x.must("write", fmt.Sprintf("contents(%d)", round))
		if round == 3 {
			x.must("end a worker", "w = workers.pop(1); os.write(w.w, struct.pack('q', -1)); same(os.waitpid(w.pid, 0), (w.pid, 7 << 8)); workers.append(Worker(50))")
		}
		was = x.must("contents", "contents()")
		c := h.checkpoint(box)
		t.Logf("checkpoint %d: %d MB copied", round, c.DirtyBytes>>20)
		if round%2 == 0 {
			f := h.fork(box, c.ID, 1)[0]
			y := h.adopt(f, x.id)
			all(y, "fork")
			if now := y.must("contents of a fork", "contents()"); now != was {
				t.Fatalf("round %d: the fork has %s, not %s", round, now, was)
			}
			h.remove(f)
			continue
		}
		x.must("write more", fmt.Sprintf("contents(%d)", 100+round))
		r, ss := h.rollback(box, c.ID)
		x = ss[x.id]
		if round == 1 {
			t.Logf("rollback: %v", r.StageNS)
		}
		all(x, "rolled back")
		if now := x.must("contents after a rollback", "contents()"); now != was {
			t.Fatalf("round %d: rolled back to %s, not %s", round, now, was)
		}
	}
	_, ss := h.rollback(box, at.ID)
	all(ss[x.id], "rolled back to the first")
	ss[x.id].must("workers end", "same([os.write(w.w, struct.pack('q', -1)) and os.waitpid(w.pid, 0) for w in workers], [(w.pid, 7 << 8) for w in workers])")
}

// Workers whose parent has ended go on sharing with each other.
func TestOrphanedWorkersKeepWhatTheyShare(t *testing.T) {
	const heap, workers = 32, 5
	h := newHost(t, withoutStandbys)
	box := h.create()
	x := h.obedient(box)
	x.must("start", `
r, w = os.pipe()
def parent():
    exec(compile(`+"'''"+fmt.Sprintf(prefork, heap, workers)+"'''"+`, 'prefork', 'exec'), globals())
    os.write(w, b'%d' % len(globals()['workers']))
    time.sleep(1000)
p = child(parent)
same(int(os.read(r, 8)), `+fmt.Sprint(workers)+`)
`)
	h.checkpoint(box)
	x.must("end the parent", "os.kill(p, 9); os.waitpid(p, 0)")
	for round := range 3 {
		c := h.checkpoint(box)
		_, ss := h.rollback(box, c.ID)
		x = ss[x.id]
		n, mb := residentShare(x)
		t.Logf("round %d: %d processes, Pss %d MB", round, n, mb)
		if n != workers+1 || mb > 2*heap {
			t.Errorf("round %d: %d processes, Pss %d MB", round, n, mb)
		}
	}
}

// What workers share they share again when they come back from disk, and so does
// what was not captured as shared but is the same.
func TestPreforkServerSharesFromDisk(t *testing.T) {
	const heap, workers = 48, 5
	k := newKeepingWith(t, withoutStandbys)
	box := k.create()
	x := k.obedient(box)
	x.must("start", fmt.Sprintf(prefork, heap, workers))
	x.must("write", "contents(1)")
	first := k.kept(box, k.keep(box).ID)
	x.must("write", "contents(2)")
	was := x.must("contents", "contents()")
	second := k.kept(box, k.keep(box).ID)
	t.Logf("on disk: %d KB, and %d KB for the second", first.DurableBytes>>10, second.DurableBytes>>10)
	x.must("write", "contents(3)")
	tree := k.tree(box)
	k.killSupervisor()
	k.recover(tree)
	_, ss := k.rollback(box, second.ID)
	x = ss[x.id]
	shares := func(what string) {
		t.Helper()
		n, mb := residentShare(x)
		t.Logf("%s: %d processes, Pss %d MB", what, n, mb)
		if n != workers+1 || mb > 2*heap {
			t.Errorf("%s: %d processes, Pss %d MB", what, n, mb)
		}
	}
	shares("from disk")
	if now := x.must("contents from disk", "contents()"); now != was {
		t.Fatalf("from disk they have %s, not %s", now, was)
	}
	// It goes on as one that was never on disk alone.
	for round := 3; round < 6; round++ {
		x.must("write", fmt.Sprintf("contents(%d)", round))
		was = x.must("contents", "contents()")
		c := k.keep(box)
		if most := int64(heap) << 20; c.DirtyBytes > most {
			t.Errorf("round %d copied %d MB", round, c.DirtyBytes>>20)
		}
		_, ss = k.rollback(box, c.ID)
		x = ss[x.id]
		shares(fmt.Sprint("round ", round))
		if now := x.must("contents", "contents()"); now != was {
			t.Fatalf("round %d: rolled back to %s, not %s", round, now, was)
		}
	}
	_, ss = k.rollback(box, first.ID)
	x = ss[x.id]
	shares("the first")
	x.must("workers end", "same([os.write(w.w, struct.pack('q', -1)) and os.waitpid(w.pid, 0) for w in workers], [(w.pid, 7 << 8) for w in workers])")
}
