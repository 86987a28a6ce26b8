package engine_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestKindsOfThreads(t *testing.T) {
	var scenes []scene
	for _, n := range []int{1, 5, 64, 300} {
		scenes = append(scenes, scene{
			name: fmt.Sprintf("%d threads of python", n),
			setup: fmt.Sprintf(`
n = %d
threading.stack_size(1 << 16)
local, cond, lock, steps, turn = threading.local(), threading.Condition(), threading.Lock(), [0] * n, 0
here = threading.Barrier(n + 1)
def work(i):
    global total
    local.mine = i * i
    libc.prctl(15, b'worker %%d' %% i, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [35 + i %% 20])
    here.wait()
    last = 0
    while True:
        with cond:
            while turn == last: cond.wait(1000)
            last = turn
            if local.mine != i * i: raise Exception('local')
            steps[i] += 1
            cond.notify_all()
ts = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
for t in ts: t.start()
here.wait()
def step():
    global turn
    with cond:
        turn += 1; cond.notify_all()
        if not cond.wait_for(lambda: all(s == turn for s in steps), 20): raise Exception('%%d of %%d stand' %% (sum(s != turn for s in steps), n))
ids = {t.native_id for t in ts} | {os.getpid()}
`, n),
			peek: `
step()
same({int(x) for x in os.listdir('/proc/self/task')}, ids)
for i in range(0, n, 7):
    d = '%d/task/%d' % (os.getpid(), ts[i].native_id)
    same(status(d, 'Name'), 'worker %d' % i)
    same(bool(int(status(d, 'SigBlk'), 16) >> 34 + i % 20 & 1), True)
`,
			check: `
step()
extra = threading.Thread(target=lambda: None); extra.start(); extra.join()
`,
			spoil: `step(); libc.prctl(15, b'spoiled', 0, 0, 0)`,
		})
	}
	scenes = append(scenes, scene{
		name: "a main thread that has ended",
		setup: `
ar, aw = os.pipe(); br, bw = os.pipe()
def run():
    libc.prctl(15, b'headless', 0, 0, 0)
    global local, f
    local, f = threading.local(), open('/root/kept', 'w+')
    f.write('content'); f.flush()
    def serve():
        local.mine = 5
        for l in iter(lambda: os.read(ar, 1 << 16), b''):
            try: r = repr(eval(l, globals()))
            except BaseException as e: r = repr(e)
            os.write(bw, r.encode())
    for _ in range(2): threading.Thread(target=serve).start()
    os.write(bw, b'!'); libc.syscall(60, 7)
kid = child(run); same(os.read(br, 1), b'!')
until(lambda: stat(kid)['state'] == 'Z')
def tell(line): os.write(aw, line.encode()); return os.read(br, 1 << 16).decode()
heap = tell("globals().update(big=bytearray(b'z' * 3000000)) or len(big)")
had = sorted(os.listdir('/proc/%d/task' % kid)), sorted(os.listdir('/proc/%s/fd' % os.listdir('/proc/%d/task' % kid)[1]))
`,
		peek: `
until(lambda: stat(kid)['state'] == 'Z', 'the main thread has ended') # it ends as the first thing it does
same((sorted(os.listdir('/proc/%d/task' % kid)), sorted(os.listdir('/proc/%s/fd' % os.listdir('/proc/%d/task' % kid)[1]))), had)
same(status(kid, 'Name'), 'headless'); same(status(kid, 'PPid'), str(os.getpid()))
same(tell("local.mine, f.seek(0), f.read(), big.count(b'z'), f.write('') or f.seek(7)"), "(5, 0, 'content', 3000000, 7)")
same(os.waitpid(kid, os.WNOHANG), (0, 0))
`,
		check: `
same(tell("[i.start() or i.join() for i in [threading.Thread(target=lambda: None)]]"), '[None]')
os.write(aw, b'libc.syscall(60, 3)')
until(lambda: len(os.listdir('/proc/%d/task' % kid)) == 2, 'one ends')
os.write(aw, b'libc.syscall(60, 4)')
same(os.waitpid(kid, 0)[1] >> 8 in (7, 4), True) # the main thread's, or the last one's in newer kernels
`,
		spoil: `
try: os.kill(kid, 9); os.waitpid(kid, 0)
except OSError: pass
`,
	})
	playAll(t, scenes)
}

// build compiles a C program that needs no library inside.
func build(t *testing.T, source string, flags ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	check(t, os.WriteFile(from, []byte(source), 0o600))
	out, err := exec.Command("gcc", append(flags, "-O1", "-static", "-pthread", "-o", to, from)...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc (the race detector needs it, too): %v\n%s", err, out)
	}
	b, err := os.ReadFile(to)
	check(t, err)
	return b
}

// threadsProgram has threads that keep values in registers of all kinds, in
// thread-local variables, behind mutexes and condition variables, with a robust
// mutex, a handler that runs on an alternate stack and stays there, and a
// registered area of restartable sequences. It answers each line with "ok", or
// what is wrong.
const threadsProgram = `
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/rseq.h>
#include <unistd.h>
#define N 12
static __thread long mine = -1;
static __thread int seen; // rounds
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER, inside = PTHREAD_MUTEX_INITIALIZER, *robust;
static pthread_cond_t cv = PTHREAD_COND_INITIALIZER;
static long turn, done; static atomic_int go, held, wrong; static atomic_long rounds[N];
static char big[N][65536];

// Registers of the floating point unit, SSE and AVX keep values while it spins
// without any call; returns how many were lost.
static int spin(long i) {
	double want[8]; unsigned long flags; int bad = 0;
	for (int k = 0; k < 8; k++) want[k] = i * 100 + k + 0.25;
	double st = i + 0.5, out[8], stout; int go0 = seen;
	unsigned csr = 0x1f80 | (i % 4) << 13, csrout; unsigned short cw = 0x37f & ~0x300, cwout;
	__asm__ volatile(
		"ldmxcsr %[csr]\n fldcw %[cw]\n fldl %[st]\n"
		"movsd 0(%[w]),%%xmm0\n movsd 8(%[w]),%%xmm1\n movsd 16(%[w]),%%xmm2\n movsd 24(%[w]),%%xmm3\n"
		"movsd 32(%[w]),%%xmm4\n movsd 40(%[w]),%%xmm13\n movsd 48(%[w]),%%xmm14\n movsd 56(%[w]),%%xmm15\n"
		"std\n stc\n"
		"1: lock; incq (%[r])\n pause\n stc\n cmpl %[g0],%[g]\n je 1b\n"
		"pushfq\n popq %[f]\n cld\n"
		"movsd %%xmm0,0(%[o])\n movsd %%xmm1,8(%[o])\n movsd %%xmm2,16(%[o])\n movsd %%xmm3,24(%[o])\n"
		"movsd %%xmm4,32(%[o])\n movsd %%xmm13,40(%[o])\n movsd %%xmm14,48(%[o])\n movsd %%xmm15,56(%[o])\n"
		"fstpl %[sto]\n stmxcsr %[csro]\n fnstcw %[cwo]\n fninit\n"
		: [f] "=&r"(flags), [sto] "=m"(stout), [csro] "=m"(csrout), [cwo] "=m"(cwout)
		: [w] "r"(want), [o] "r"(out), [st] "m"(st), [csr] "m"(csr), [cw] "m"(cw), [g] "m"(go), [g0] "r"(go0), [r] "r"(&rounds[i])
		: "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm13", "xmm14", "xmm15", "st");
	unsigned fine = 0x1f80;
	__asm__ volatile("ldmxcsr %0" : : "m"(fine));
	for (int k = 0; k < 8; k++) bad += out[k] != want[k];
	bad += stout != st; bad += (csrout & 0xffc0) != (csr & 0xffc0); bad += cwout != cw; bad += !(flags & 0x400);
	return bad;
}
#ifdef __AVX__
static int spinWide(long i) {
	unsigned char in[32], out[32]; int go0 = seen;
	for (int k = 0; k < 32; k++) in[k] = i * 32 + k;
	__asm__ volatile("vmovdqu (%[i]),%%ymm9\n 1: lock; incq (%[r])\n pause\n cmpl %[g0],%[g]\n je 1b\n vmovdqu %%ymm9,(%[o])\n vzeroupper\n"
		: : [i] "r"(in), [o] "r"(out), [g] "m"(go), [g0] "r"(go0), [r] "r"(&rounds[i]) : "memory", "xmm9");
	return memcmp(in, out, 32) != 0;
}
#endif
static void handler(int sig, siginfo_t *si, void *u) {
	char here; stack_t ss;
	long i = si->si_value.sival_int;
	if (&here < big[i] || &here >= big[i] + sizeof big[i]) wrong++;
	int bad = spin(i);
	if (bad) wrong += 1000 + bad;
	sigaltstack(0, &ss);
	if (ss.ss_sp != big[i] || !(ss.ss_flags & SS_ONSTACK) || ss.ss_size != sizeof big[i]) wrong += 100000;
}
static void *work(void *a) {
	long i = (long)a; mine = i;
	stack_t ss = {.ss_sp = big[i], .ss_size = sizeof big[i]};
	sigaltstack(&ss, 0);
	if (i == 0) { pthread_mutex_lock(robust); held = 1; for (;;) pause(); }
	if (i == 1) { while (!held) usleep(100); pthread_mutex_lock(&inside); for (;;) pause(); }
	if (i == 2) { while (!held) usleep(100); usleep(50000); held = 2; pthread_mutex_lock(&inside); }
	for (;;) {
		int bad = 0;
		if (i == 3) { // in a handler, on its stack
			union sigval v = {.sival_int = i};
			pthread_sigqueue(pthread_self(), SIGUSR2, v);
		}
		else if (i < 7) bad = spin(i);
#ifdef __AVX__
		else if (i < 10) bad = spinWide(i);
#endif
		else {
			pthread_mutex_lock(&mu);
			while (turn == seen) pthread_cond_wait(&cv, &mu);
			pthread_mutex_unlock(&mu);
		}
		if (bad) wrong += bad;
		if (mine != i) wrong++;
		unsigned cpu; struct rseq *rs = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
		if (__rseq_size == 0 || (int)rs->cpu_id < 0) wrong += 1000000;
		// The area is registered: unregistering it with another length fails otherwise.
		if (syscall(SYS_rseq, rs, 32, 0, RSEQ_SIG) == 0 || errno != EBUSY) wrong += 10000000;
		seen++;
		pthread_mutex_lock(&mu); done++; pthread_cond_broadcast(&cv); pthread_mutex_unlock(&mu);
	}
	return 0;
}
int main() {
	pthread_t t[N]; char line[100];
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	sigaction(SIGUSR2, &sa, 0);
	robust = mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t at; pthread_mutexattr_init(&at); pthread_mutexattr_setrobust(&at, PTHREAD_MUTEX_ROBUST); pthread_mutexattr_setpshared(&at, 1);
	pthread_mutex_init(robust, &at);
	for (long i = 0; i < N; i++) pthread_create(&t[i], 0, work, (void *)i);
	while (held != 2) usleep(1000);
	usleep(10000);
	printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (line[0] == 'k') { // the holder of the robust mutex ends, and another one is told
			syscall(SYS_tgkill, getpid(), getpid(), 0);
			pthread_cancel(t[0]); pthread_join(t[0], 0);
			int e = pthread_mutex_lock(robust);
			printf("= robust %s\n", e == EOWNERDEAD ? "ok" : strerror(e)); fflush(stdout);
			continue;
		}
		pthread_mutex_lock(&mu);
		done = 0; turn++; go++;
		pthread_cond_broadcast(&cv);
		while (done < N - 3) pthread_cond_wait(&cv, &mu);
		pthread_mutex_unlock(&mu);
		if (pthread_mutex_trylock(&inside) != EBUSY) wrong += 7;
		printf("= %s %d\n", wrong ? "wrong" : "ok", (int)wrong); fflush(stdout);
	}
}
`

// All that a thread has besides memory, in a program without an interpreter.
func TestKindsOfThreadState(t *testing.T) {
	h := newHost(t)
	flags := []string{"-mno-red-zone"}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil && containsWord(string(b), "avx") {
		flags = append(flags, "-mavx")
	}
	program := build(t, threadsProgram, flags...)
	box := h.create()
	h.put(box, "/root/threads", program)
	x := h.exec(box, false, "/root/threads")
	x.until("= ready")
	ok := func(x *talk, when string) {
		t.Helper()
		if got := x.ask("step", "= "); got != "ok 0" {
			t.Errorf("%s: %s", when, got)
		}
	}
	ok(x, "at first")
	c := h.checkpoint(box)
	ok(x, "live")
	for range 3 {
		_, ss := h.rollback(box, c.ID)
		x = ss[x.id]
		ok(x, "rolled back")
		c = h.checkpoint(box)
		ok(x, "live again")
	}
	for i, f := range h.fork(box, c.ID, 2) {
		y := h.adopt(f, x.id)
		ok(y, fmt.Sprintf("fork %d", i))
		if got := y.ask("kill", "= robust "); got != "ok" {
			t.Errorf("robust mutex: %s", got)
		}
	}
}
