package engine_test

import (
	"testing"
	"time"
)

func TestKindsOfSignals(t *testing.T) {
	playAll(t, []scene{
		{
			name: "handlers, masks and queued signals",
			setup: `
got = []
class Value(ctypes.Union): _fields_ = [('i', ctypes.c_int), ('p', ctypes.c_void_p)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
blocked = [signal.SIGUSR1, 40, 41, signal.SIGTERM, signal.SIGTRAP]
signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
signal.signal(signal.SIGUSR2, lambda s, f: got.append(s))
signal.siginterrupt(signal.SIGUSR2, False)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTRAP, lambda s, f: got.append(s))
for i in range(5): call(libc.sigqueue, os.getpid(), 40, Value(i=100 + i))
call(libc.sigqueue, os.getpid(), 41, Value(p=0x123456789abc))
os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGTERM)
signal.pthread_kill(threading.get_ident(), 41)
def actions(): # of all signals, as the kernel has them
    out = []
    for s in range(1, 65):
        b = ctypes.create_string_buffer(32)
        if s not in (9, 19): call(libc.syscall, 13, s, None, b, ctypes.c_size_t(8))
        out.append(b.raw)
    return out
was = actions()
pending = lambda: (status('self', 'SigPnd'), status('self', 'ShdPnd'), status('self', 'SigBlk'), status('self', 'SigQ').split('/')[0])
had = pending()
`,
			peek: `
same(actions(), was, 'actions'); same(pending(), had, 'pending'); same(got, [])
`,
			check: `
take = lambda s: signal.sigtimedwait(s, 0)
for i in range(5):
    si = take([40]); same((si.si_pid, si.si_code), (os.getpid(), -1))
    b = ctypes.create_string_buffer(128)
same(take([40]), None)
same(sorted([take([41]).si_code, take([41]).si_code]), [-1, 0]); same(take([41]), None)
same(take([signal.SIGTERM]).si_code, 0); same(take([signal.SIGTERM]), None)
signal.signal(signal.SIGUSR1, lambda s, f: got.append(s))
signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
time.sleep(0)
same(got, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR2); os.kill(os.getpid(), signal.SIGTRAP); os.kill(os.getpid(), signal.SIGHUP)
time.sleep(0)
same(sorted(got), sorted([signal.SIGUSR1, signal.SIGUSR2, signal.SIGTRAP]))
`,
			spoil: `
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
while signal.sigtimedwait(blocked, 0): pass
`,
		},
		{ // our own code ends with traps: those of others must not pass for them
			name: "traps that wait",
			setup: `
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
os.kill(os.getpid(), signal.SIGTRAP)
had = status('self', 'ShdPnd')
def other():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
    signal.pthread_kill(threading.get_ident(), signal.SIGTRAP)
    while not go: time.sleep(0.01)
    took.append(signal.sigtimedwait([signal.SIGTRAP], 0))
go, took = [], []
t = threading.Thread(target=other, daemon=True); t.start()
def traps():
    n = int(status('self', 'ShdPnd'), 16) >> 4 & 1
    for i in os.listdir('/proc/self/task'):
        try: n += int(status('self/task/' + i, 'SigPnd'), 16) >> 4 & 1
        except (FileNotFoundError, ProcessLookupError): pass  # it has just ended
    return n
until(lambda: traps() == 2, 'two traps')
`,
			// A thread queues its trap again as the first thing it does when it goes
			// on; others may look before.
			peek: `until(lambda: traps() == 2, 'both traps')`,
			check: `
go.append(1); t.join()
same(took[0] is not None, True)
same(signal.sigtimedwait([signal.SIGTRAP], 0) is not None, True)
same(traps(), 0)
`,
			spoil: `
while signal.sigtimedwait([signal.SIGTRAP], 0): pass
`,
		},
		{
			name: "values of queued signals",
			setup: `
signal.pthread_sigmask(signal.SIG_BLOCK, [42])
class Value(ctypes.Union): _fields_ = [('i', ctypes.c_int), ('p', ctypes.c_void_p)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
for i in range(3000): call(libc.sigqueue, os.getpid(), 42, Value(p=0x7000_0000_0000 + i))
def values():
    out, b, set_ = [], ctypes.create_string_buffer(128), ctypes.c_uint64(1 << 41)
    while libc.syscall(128, ctypes.byref(set_), b, (ctypes.c_int64 * 2)(), ctypes.c_size_t(8)) == 42:
        out.append(struct.unpack_from('QQ', b.raw, 16)[1])
    return out
`,
			peek:  `same(status('self', 'SigQ').split('/')[0], '3000')`,
			check: `same(values(), [0x7000_0000_0000 + i for i in range(3000)])`,
			spoil: `values()`,
		},
		{
			name: "timers",
			setup: `
alarms = []
signal.signal(signal.SIGALRM, lambda s, f: alarms.append(time.monotonic()))
signal.signal(signal.SIGPROF, lambda s, f: alarms.append('prof'))
start = time.monotonic()
signal.setitimer(signal.ITIMER_REAL, 100, 0.05)
signal.setitimer(signal.ITIMER_PROF, 1000, 500)
clocks = [time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]
`,
			peek: `
left, every = signal.getitimer(signal.ITIMER_REAL)
if not 80 < left < 100 or every != 0.05: raise Exception('%r %r' % (left, every))
left, every = signal.getitimer(signal.ITIMER_PROF)
if not 980 < left <= 1000.1 or every != 500: raise Exception('%r %r' % (left, every))
now = [time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)]
if any(b < a for a, b in zip(clocks, now)) or now[0] > clocks[0] + 60: raise Exception('%r %r' % (clocks, now))
same(alarms, [])
`,
			check: `
signal.alarm(0); signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
until(lambda: len(alarms) >= 3, 'alarms')
signal.setitimer(signal.ITIMER_REAL, 0)
`,
			spoil: `signal.setitimer(signal.ITIMER_REAL, 0); signal.setitimer(signal.ITIMER_PROF, 0)`,
		},
	})
}

// waits are blocking calls, each of which tells when it comes back early.
const waits = `
import collections
libc.sigsuspend.argtypes = [ctypes.c_void_p]
early = []
def waiting(f):
    def g():
        while True:
            r = f()
            early.append((f.__name__, r))
            if len(early) > 1000: return
    t = threading.Thread(target=g, daemon=True); t.start(); return t
def raw(*a):
    r = libc.syscall(*a)
    return (r, ctypes.get_errno() if r == -1 else 0)
L = ctypes.c_long
pr, pw = os.pipe()
ep = select.epoll(); ep.register(pr, select.EPOLLIN)
def epoll_wait(): return raw(L(232), L(ep.fileno()), ctypes.create_string_buffer(64), L(4), L(1000000))
def epoll_pwait(): return raw(L(281), L(ep.fileno()), ctypes.create_string_buffer(64), L(4), L(-1), ctypes.byref(ctypes.c_uint64(0xff0)), L(8))
def poll(): return raw(L(7), ctypes.byref(ctypes.c_uint64(pr | 1 << 32)), L(1), L(1000000))
def ppoll(): return raw(L(271), ctypes.byref(ctypes.c_uint64(pr | 1 << 32)), L(1), None, ctypes.byref(ctypes.c_uint64(0xff0)), L(8))
def select_(): return raw(L(23), L(0), None, None, None, (L * 2)(1000, 0))
def nanosleep(): return raw(L(35), (L * 2)(1000, 0), None)
def clock_nanosleep(): return raw(L(230), L(1), L(1), (L * 2)(10000000, 0), None)
word = ctypes.c_int(7)
def futex(): return raw(L(202), ctypes.byref(word), L(128), L(7), (L * 2)(1000, 0), None, L(0))
def futex_forever(): return raw(L(202), ctypes.byref(word), L(128), L(7), None, None, L(0))
def sigtimedwait(): return raw(L(128), ctypes.byref(ctypes.c_uint64(1 << 49)), None, (L * 2)(1000, 0), L(8))
def sigsuspend(): return raw(L(130), ctypes.byref(ctypes.c_uint64(0xff0)), L(8))
def pause(): return raw(L(34))
def read(): return raw(L(0), L(pr), ctypes.create_string_buffer(1), L(1))
def wait4(): return raw(L(61), L(sleeper), None, L(0), None)
sleeper = child(lambda: [time.sleep(1000) for _ in range(1000)])
all_ = [epoll_wait, epoll_pwait, poll, ppoll, select_, nanosleep, clock_nanosleep, futex, futex_forever, sigtimedwait, sigsuspend, pause, read, wait4]
threads = [waiting(f) for f in all_]
time.sleep(0.1)
`

// A stop interrupts every blocking call; none of them may come back for it, in
// the live program or in a copy.
func TestKindsOfWaits(t *testing.T) {
	h := newKeeping(t)
	h.play(t, scene{
		name:  "waits",
		setup: waits,
		peek:  `time.sleep(0.02); same(early, [])`,
		check: `
os.kill(sleeper, 9)
until(lambda: ('wait4', (sleeper, 0)) in early, 'wait4')
early.clear()
word.value = 8; raw(L(202), ctypes.byref(word), L(129), L(100), None, None, L(0))
until(lambda: {('futex', (0, 0)), ('futex_forever', (0, 0))} <= set(early), 'futex')
os.write(pw, bytes(5000)) # more than read takes before the others have looked
until(lambda: {('read', (1, 0)), ('poll', (1, 0)), ('ppoll', (1, 0)), ('epoll_wait', (1, 0)), ('epoll_pwait', (1, 0))} <= set(early), 'input')
`,
		spoil: `
try: os.kill(sleeper, 9)
except OSError: pass
`,
	})
}

// Stops that come more often than a timeout lasts do not keep it from passing,
// and do not make it pass early.
func TestKindsOfTimeouts(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("setup", `
L = ctypes.c_long
took = {'epoll': [], 'sigtimedwait': []}
def epolling():
    ep = select.epoll()
    while True:
        a = time.monotonic(); r = libc.syscall(L(232), L(ep.fileno()), ctypes.create_string_buffer(64), L(4), L(150))
        took['epoll'].append((time.monotonic() - a, r))
def waiting():
    while True:
        a = time.monotonic(); r = libc.syscall(L(128), ctypes.byref(ctypes.c_uint64(1 << 49)), None, (L * 2)(0, 170000000), L(8))
        took['sigtimedwait'].append((time.monotonic() - a, r))
for f in (epolling, waiting): threading.Thread(target=f, daemon=True).start()
time.sleep(0.4)
`)
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		h.checkpoint(box)
	}
	x.must("timeouts", `
for (k, v), least in zip(took.items(), (0.15, 0.17)):
    if len(v) < 5: raise Exception('%s: only %r' % (k, v))
    if min(t for t, _ in v) < least - 0.002: raise Exception('%s: early: %r' % (k, v))
    same({r for _, r in v}, {0} if k == 'epoll' else {-1})
`)
}

// Signals that come while the tree is stopped again and again are all delivered,
// each once, with what belongs to them; and timeouts end.
func TestKindsOfSignalsDuringCheckpoints(t *testing.T) {
	h := newHost(t)
	box := h.create()
	h.put(box, "/root/signals", build(t, `
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static atomic_long got, next, wrong, alarms, early, timeouts; static atomic_int stop;
static void value(int s, siginfo_t *si, void *u) {
	if (si->si_code != SI_QUEUE || si->si_pid <= 1) wrong += 1000;
	if (si->si_value.sival_ptr != (void *)(0x10000000000 + next)) wrong++;
	next++; got++;
}
static void alarmed(int s) { alarms++; }
static void *epolling(void *a) {
	sigset_t all; sigfillset(&all); pthread_sigmask(SIG_BLOCK, &all, 0);
	int ep = epoll_create1(0); struct epoll_event ev;
	while (!stop) { int r = epoll_wait(ep, &ev, 1, 300); if (r == 0) timeouts++; else early++; }
	return 0;
}
int main() {
	struct sigaction sa = {.sa_sigaction = value, .sa_flags = SA_SIGINFO | SA_RESTART}; sigaction(40, &sa, 0);
	struct sigaction sb = {.sa_handler = alarmed, .sa_flags = SA_RESTART}; sigaction(SIGALRM, &sb, 0);
	struct itimerval it = {{0, 1000}, {0, 1000}}; setitimer(ITIMER_REAL, &it, 0);
	pthread_t t; pthread_create(&t, 0, epolling, 0);
	int p[2]; if (pipe(p)) return 1;
	pid_t kid = fork();
	if (kid == 0) {
		signal(SIGALRM, SIG_IGN); long n = 0; char c; int fl = 1;
		close(p[1]);
		while (read(p[0], &c, 1) == 1) for (int i = 0; i < 200; i++) {
			union sigval v = {.sival_ptr = (void *)(0x10000000000 + n)};
			if (sigqueue(getppid(), 40, v) == 0) n++; else i--;
			struct timespec ts = {0, 100000}; nanosleep(&ts, 0);
		}
		exit(0);
	}
	char line[100]; long want = 0;
	printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (line[0] == 'g') { want += 200; if (write(p[1], "x", 1) != 1) wrong += 5; printf("= on\n"); }
		else {
			for (int i = 0; i < 5000 && got < want; i++) { struct timespec ts = {0, 1000000}; nanosleep(&ts, 0); }
			long a = alarms; for (int i = 0; i < 1000 && alarms < a + 5; i++) { struct timespec ts = {0, 1000000}; nanosleep(&ts, 0); }
			for (int i = 0; i < 1000 && timeouts == 0; i++) { struct timespec ts = {0, 1000000}; nanosleep(&ts, 0); }
			printf("= got %ld wrong %ld early %ld alarms %s timeouts %s\n", want - got, wrong, early, alarms >= a + 5 ? "ok" : "none", timeouts ? "some" : "none");
		}
		fflush(stdout);
	}
}
`))
	x := h.exec(box, false, "/root/signals")
	x.until("= ready")
	const fine = "got 0 wrong 0 early 0 alarms ok timeouts some"
	for round := range 3 {
		x.ask("go", "= on")
		last := h.checkpoint(box)
		for range 12 {
			last = h.checkpoint(box)
		}
		if got := x.ask("how", "= "); got != fine {
			t.Errorf("round %d: %s", round, got)
		}
		_, ss := h.rollback(box, last.ID)
		x = ss[x.id]
		if got := x.ask("how", "= "); got != fine {
			t.Errorf("round %d, rolled back: %s", round, got)
		}
	}
}
