package engine_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// storm forks, executes and ends processes as fast as it can, and notices every
// one that does not end as it should. It answers with how many there were.
const storm = `
import threading
rounds, bad, going, lock = [0] * 5, [], True, threading.Lock()
def note(i, ok, what):
    rounds[i] += 1
    if not ok: bad.append(what)
def shells():
    p = subprocess.Popen(['bash', '-c', 'n=0; while read -t 0 || true; do /bin/true || echo bad; (exit 3); [ $? = 3 ] || echo bad; x=$(echo a | cat); [ "$x" = a ] || echo bad; n=$((n+1)); echo $n; done'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    for l in p.stdout:
        note(0, l.strip().isdigit(), l)
        if not going: break
    p.kill(); p.wait()
def vforks():
    while going:
        p = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 5'], {}); note(1, os.waitpid(p, 0) == (p, 5 << 8), 'spawn')
def forks():
    while going:
        p = os.fork()
        if p == 0: os._exit(9)
        note(2, os.waitpid(p, 0) == (p, 9 << 8), 'fork')
def threads():
    while going:
        t = threading.Thread(target=lambda: None); t.start(); t.join(10); note(3, not t.is_alive(), 'thread')
def pipes():
    r, w = os.pipe(); n = 0
    while going:
        os.write(w, struct.pack('Q', n)); note(4, struct.unpack('Q', os.read(r, 8))[0] == n, 'pipe'); n += 1
        if n % 50 == 0: time.sleep(0.001)
ts = [threading.Thread(target=f) for f in (shells, vforks, forks, threads, pipes)]
for t in ts: t.start()
until(lambda: all(rounds), 'storm')
`

var storms = flag.Int("storms", 60, "how many checkpoints are taken in a storm of forks")

// No checkpoint of a storm fails, and no process is lost, in the live tree or in a
// copy.
func TestKindsOfStorms(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("storm", storm)
	var kept []control.Checkpoint
	for i := range *storms {
		kept = append(kept, h.checkpoint(box))
		if i%10 == 9 {
			x.must("going on", "was = rounds[:]; until(lambda: all(a > b for a, b in zip(rounds, was)), 'all go on'); same(bad, [])")
		}
	}
	realtime(t)
	for _, c := range []control.Checkpoint{kept[0], kept[len(kept)/2], kept[len(kept)-1]} {
		_, ss := h.rollback(box, c.ID)
		x = ss[x.id]
		x.must("going on after rollback", "was = rounds[:]; until(lambda: all(a > b for a, b in zip(rounds, was)), 'all go on'); same(bad, [])")
		h.checkpoint(box)
		x.must("going on after another checkpoint", "was = rounds[:]; until(lambda: all(a > b for a, b in zip(rounds, was)), 'all go on'); same(bad, [])")
	}
	x.must("end", "going = False\nfor t in ts: t.join(20); same(t.is_alive(), False)\nsame(bad, [])")
	realtime(t)
}

// Processes that are stopped and told to go on all the time: no checkpoint fails over a
// stop that is on its way, and none is lost.
func TestKindsOfStops(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("a storm of stops", `
import itertools, mmap, random, threading
m = mmap.mmap(-1, 4096)
def spin(i):
    for n in itertools.count(): m[8*i:8*i+8] = struct.pack('Q', n)
ps = [child(lambda i=i: spin(i)) for i in range(6)]
going = True
def storm():
    while going: os.kill(random.choice(ps), random.choice([signal.SIGSTOP, signal.SIGCONT]))
t = threading.Thread(target=storm); t.start()
counts = lambda: [struct.unpack_from('Q', m, 8*i)[0] for i in range(6)]
`)
	var c control.Checkpoint
	for range 20 {
		c = h.checkpoint(box)
	}
	settle := `
going = False; t.join()
for p in ps: os.kill(p, signal.SIGSTOP)
for p in ps: same(os.WIFSTOPPED(os.waitpid(p, os.WUNTRACED)[1]), True)
for p in ps: os.kill(p, signal.SIGCONT)
was = counts(); until(lambda: all(a != b for a, b in zip(was, counts())), 'all go on')
`
	x.must("settle", settle)
	realtime(t)
	_, ss := h.rollback(box, c.ID)
	ss[x.id].must("settle", settle)
}

// realtime looks for a thread of these tests' sandboxes that is real-time, or
// traced.
func realtime(t *testing.T) {
	t.Helper()
	maps, err := filepath.Glob("/proc/[0-9]*/uid_map")
	check(t, err)
	for _, m := range maps {
		b, err := os.ReadFile(m)
		if err != nil || !strings.Contains(string(b), fmt.Sprint(idBase)) {
			continue
		}
		tasks, _ := filepath.Glob(filepath.Join(filepath.Dir(m), "task", "*"))
		for _, task := range tasks {
			var tid int
			_, err := fmt.Sscan(filepath.Base(task), &tid)
			check(t, err)
			st, err := os.ReadFile(filepath.Join(task, "status"))
			if err != nil || containsWord(string(st), "(zombie)") {
				continue
			}
			if a, e := sched.Get(tid); e == 0 && a.Policy == sched.FIFO && strings.Contains(string(st), "TracerPid:\t0\n") {
				t.Errorf("thread %d is real-time: %s", tid, st)
			}
		}
	}
}
