package engine_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
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

// A process that waits for its vforked child cannot be stopped. A checkpoint has the
// child go on until it executes a program, and keeps that. If it takes its time,
// the checkpoint gives up; everything goes on, the process too as soon as it can.
func TestKindsOfVfork(t *testing.T) {
	h := newHost(t)
	box := h.create()
	h.put(box, "/root/vfork", build(t, `
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static int kept = 7; // a program that took its parent's memory for its own would answer with it
static volatile sig_atomic_t got;
static void on(int s) { got++; }
int main(int n, char **a) {
	char line[100];
	if (n > 1) {
		kept = 8;
		for (int i = 0; scanf("%99s", line) == 1; i++) { printf("= child %d %d\n", kept, i); fflush(stdout); }
		return 0;
	}
	signal(SIGUSR1, on);
	printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		struct timespec ts = {0, atol(line + 1) * 1000000L};
		pid_t p = vfork();
		if (p == 0) {
			if (write(1, "= inside\n", 9) != 9) _exit(1);
			if (line[1] == 'w') { char c; int fd = open("/tmp/go", O_RDONLY); if (read(fd, &c, 1) != 1) _exit(2); } // until it is told
			nanosleep(&ts, 0);
			if (line[0] == 'n') { // one within another
				if (vfork() == 0) { nanosleep(&ts, 0); kill(getppid(), SIGUSR1); _exit(4); }
				_exit(5);
			}
			if (line[0] == 'e') { execl("/root/vfork", "vfork", "child", NULL); _exit(9); }
			_exit(6);
		}
		kept++;
		int st = 0;
		if (line[0] == 'e') printf("= outside %d\n", p > 0);
		else { waitpid(p, &st, 0); printf("= outside %d\n", WEXITSTATUS(st)); }
		fflush(stdout);
		if (line[0] == 'e') waitpid(p, 0, 0);
	}
}
`))
	x, y := h.exec(box, false, "/root/vfork"), h.obedient(box)
	x.until("= ready")
	h.checkpoint(box)
	for _, how := range []string{"q5", "q20", "n10"} {
		x.ask(how, "= inside")
		h.checkpoint(box)
		if got, want := x.until("= outside"), map[byte]string{'q': "6", 'n': "5"}[how[0]]; !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s", how, got)
		}
	}
	y.must("make a FIFO", "os.mkfifo('/tmp/go')")
	tell := func() {
		t.Helper()
		y.must("tell it", "f = open('/tmp/go', 'w'); f.write('x'); f.close()")
	}
	x.ask("qw", "= inside")
	_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
	if !fault.Is(err, fault.Uncapturable) || !strings.Contains(err.Error(), "(vfork)") {
		t.Fatalf("got %v", err)
	}
	tell()
	x.until("= outside") // it goes on without a checkpoint
	c := h.checkpoint(box)
	_, ss := h.rollback(box, c.ID)
	x, y = ss[x.id], ss[y.id]
	// A stop meets it before it is a program of its own, and gives up.
	x.ask("ew", "= inside")
	_, err = h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
	if !fault.Is(err, fault.Uncapturable) {
		t.Fatalf("got %v", err)
	}
	tell()
	x.until("= outside")
	x.ask("a", "= child 8 0")
	c = h.checkpoint(box)
	_, ss = h.rollback(box, c.ID)
	x = ss[x.id]
	x.ask("b", "= child 8 1")
	x.in.Close()
}

// Programs of many threads that execute themselves again and again, by the main thread
// or by another, which takes the main one's number then: no checkpoint waits for ever for
// what was killed, or leaves somebody traced. On a busy machine one may be refused, as
// an execve waits until all other threads have ended.
func TestKindsOfExecves(t *testing.T) {
	program := build(t, `
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *by, n[20];
static void *spin(void *a) { for (;;) getppid(); }
static void *again(void *a) { usleep(2000 + getpid() * 7919 % 3000 + atoi(n) * 137 % 5000); execl("/root/execve", "execve", by, n, NULL); _exit(1); }
int main(int c, char **v) {
	pthread_t p;
	by = v[1];
	snprintf(n, sizeof n, "%d", atoi(v[2]) + 1);
	if (atoi(n) % 10 == 0) { printf("= %s\n", n); fflush(stdout); }
	for (int i = 0; i < 4; i++) pthread_create(&p, 0, spin, 0);
	if (*by == 'm') again(0);
	pthread_create(&p, 0, again, 0);
	pause();
}
`)
	for _, c := range []struct{ name, by, between string }{
		{"main", "main", ""}, {"other", "other", ""}, {"other, while a stop looks", "other", "delay:4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			by := c.by
			h := newHost(t)
			box := h.create()
			h.put(box, "/root/execve", program)
			x, y := h.exec(box, false, "/root/execve", by, "0"), h.exec(box, false, "/root/execve", by, "0")
			x.until("= 10")
			if c.between != "" {
				failpoint.Enable(t, "process.stop.listed", c.between)
			}
			var last string
			for range 20 {
				id := h.id("cp")
				k, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: id})
				switch {
				case err == nil:
					if last = id; k.Processes != 2 {
						t.Errorf("%d of 2 processes are in a checkpoint", k.Processes)
					}
				case !fault.Is(err, fault.Uncapturable) || !strings.Contains(err.Error(), "does not stop"):
					t.Error(err)
				}
			}
			for _, s := range []*talk{x, y} {
				for range 2 { // each goes on
					s.until("= ")
				}
			}
			realtime(t)
			if last == "" {
				return
			}
			_, ss := h.rollback(box, last)
			for _, s := range []*talk{x, y} {
				ss[s.id].until("= ")
			}
			realtime(t)
		})
	}
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

// remains are what an engine leaves on the machine while it works: processes,
// mounts and cgroups, by kind.
type remains struct{ processes, mounts, cgroups int }

func (h *host) remains() (r remains) {
	h.t.Helper()
	maps, err := filepath.Glob("/proc/[0-9]*/uid_map")
	check(h.t, err)
	for _, m := range maps {
		if b, err := os.ReadFile(m); err == nil && strings.Contains(string(b), fmt.Sprint(idBase)) {
			r.processes++
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(h.t, err)
	for line := range strings.Lines(string(b)) { // others mount, too
		if strings.Contains(line, filepath.Dir(h.cfg.Pool)) {
			r.mounts++
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		ds, err := filepath.Glob(filepath.Join(pattern, h.cfg.CgroupParent, "family", "*"))
		check(h.t, err)
		for _, d := range ds {
			var st unix.Stat_t
			if unix.Stat(d, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				r.cgroups++
			}
		}
	}
	return r
}

// Each step of capture and restore fails in turn: the live tree goes on, nothing
// is left, and what comes next works.
func TestKindsOfFailures(t *testing.T) {
	h, outer := newHost(t, withoutStandbys), t
	box := h.create()
	x := h.obedient(box)
	x.must("a tree of every shape", `
def idle():
    while True: time.sleep(1000)
kids = [child(idle) for _ in range(2)]
zombie = child(lambda: os._exit(3))
def many():
    for _ in range(3): threading.Thread(target=idle, daemon=True).start()
    idle()
threaded = child(many)
o = subprocess.run(['setsid', 'bash', '-c', 'sleep 1000 >/dev/null & sleep 1001 >/dev/null & echo $!'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL); orphan = int(o.stdout)
def first():
    os.setpgid(0, 0); b = child(idle); os.write(w, b'%d' % b); os._exit(0)
r, w = os.pipe(); leader = child(first); os.waitpid(leader, 0); member = int(os.read(r, 100))
os.kill(kids[1], signal.SIGSTOP)
shared = mmap.mmap(-1, 8192); shared[0] = 1
gone = open('/tmp/gone', 'w+'); gone.write('content'); gone.flush(); os.unlink('/tmp/gone')
until(lambda: stat(zombie)['state'] == 'Z' and stat(kids[1])['state'] == 'T')
def fine():
    until(lambda: stat(kids[1])['state'] == 'T', 'it stands as before'); same(stat(zombie)['state'], 'Z')
    for p in kids + [threaded, orphan, member]:
        until(lambda: stat(p)['state'] in 'ST', 'sleep of %d' % p); same(status(p, 'TracerPid'), '0')
    same(shared[0], 1); gone.seek(0); same(gone.read(), 'content')
`)
	fine := func(when string) {
		t.Helper()
		x.must(when, "fine()")
	}
	c := h.checkpoint(box)
	fine("before")
	points := failpoint.Names()
	for _, prefix := range []string{"process.capture.", "process.restore."} {
		before := h.settled()
		for _, p := range points {
			if !strings.HasPrefix(p, prefix) {
				continue
			}
			t.Run(p, func(t *testing.T) {
				x.t, h.t = t, t
				defer func() { x.t, h.t = outer, outer }()
				t.Run("on", func(t *testing.T) {
					failpoint.Enable(t, p, "error")
					var err error
					if prefix == "process.capture." {
						_, err = h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
					} else {
						_, err = forked(h.engine.Fork(background, control.ForkRequest{
							From: control.CheckpointRef{Sandbox: box, Checkpoint: c.ID}, Sandboxes: []string{h.id("sb")}, Hostnames: []string{""},
						}))
					}
					if err == nil || !strings.Contains(err.Error(), p) {
						t.Fatalf("got %v", err)
					}
				})
				fine("after the failure")
				before = h.settle(before)
			})
		}
		n := h.checkpoint(box)
		fine("after a checkpoint")
		_, ss := h.rollback(box, n.ID)
		x = ss[x.id]
		fine("after a rollback")
	}
	if !slices.ContainsFunc(points, func(p string) bool { return strings.HasPrefix(p, "process.capture.") }) {
		t.Error("no failpoints of a capture")
	}
}

// settle waits until no more is left than before, and returns what is: what was there before
// may have been on its way to end.
func (h *host) settle(before remains) (now remains) {
	h.t.Helper()
	h.engine.Wait() // what stands ready is there again
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if now = h.remains(); now.processes <= before.processes && now.mounts <= before.mounts && now.cgroups <= before.cgroups {
			return now
		}
	}
	h.t.Errorf("%+v are left, before %+v", now, before)
	return before
}

// settled waits until what ends in the background has.
func (h *host) settled() remains {
	h.t.Helper()
	h.engine.Wait()
	last, same := h.remains(), 0
	for range 200 {
		time.Sleep(10 * time.Millisecond)
		if now := h.remains(); now != last {
			last, same = now, 0
		} else if same++; same == 8 {
			break
		}
	}
	return last
}
