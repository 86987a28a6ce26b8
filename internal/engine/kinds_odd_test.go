package engine_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// oddProgram is in one of the states that programs hardly ever are in, named by its
// argument, and answers each line with what is wrong with it.
const oddProgram = `
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
static _Atomic long good, wrong; static _Atomic int hold, held; static char line[100];
static void pausing(void) { if (hold) { held++; while (hold) usleep(200); held--; } }

// System calls that become signals (Wine does that). The kernel looks at the byte.
static volatile char selector;
static void onsys(int s, siginfo_t *si, void *u) { selector = 0; if (si->si_syscall != 39) wrong++; else good++; }
static void *dispatched(void *a) {
	if (prctl(59, 1, 0, 0, &selector)) { wrong = 1000 + errno; return 0; }
	for (;;) {
		selector = 1; // from here on, until it is a signal
		for (volatile int i = 0; i < 30000; i++);
		long r; __asm__ volatile("syscall" : "=a"(r) : "a"(39L) : "rcx", "r11", "memory");
		if (selector) wrong += 10000; // it was none
		selector = 0; usleep(100); pausing();
	}
}

// A restartable sequence that takes long: two threads on one processor add to one
// number without an atomic instruction.
static volatile long number; static _Atomic long added, aborted;
static int add(void) {
	struct rseq *rs = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
	__asm__ volatile goto(
		".pushsection __rseq_cs, \"aw\"\n .balign 32\n 3: .long 0, 0\n .quad 1f, (2f - 1f), 4f\n .popsection\n"
		"leaq 3b(%%rip), %%rax\n movq %%rax, %[cs]\n"
		"1: movq %[v], %%rcx\n movl $30000, %%eax\n 5: decl %%eax\n jnz 5b\n incq %%rcx\n movq %%rcx, %[v]\n 2:\n"
		".pushsection __rseq_failure, \"ax\"\n .byte 0x0f, 0xb9, 0x3d\n .long 0x53053053\n 4: jmp %l[abort]\n .popsection\n"
		: : [cs] "m"(rs->rseq_cs), [v] "m"(number) : "memory", "cc", "rax", "rcx" : abort);
	return 1;
abort: return 0;
}
static void *adding(void *a) {
	cpu_set_t c; CPU_ZERO(&c); CPU_SET(0, &c); sched_setaffinity(0, sizeof c, &c);
	for (;;) { if (add()) added++; else aborted++; good++; pausing(); }
}

// A thread that may not read the processor's clock.
static void onsegv(int s, siginfo_t *si, void *u) { ((ucontext_t *)u)->uc_mcontext.gregs[REG_RIP] += 2; ((ucontext_t *)u)->uc_mcontext.gregs[REG_RDX] = -1; good++; }
static int spec(void) { return prctl(PR_GET_SPECULATION_CTRL, 0, 0, 0, 0) * 1000 + prctl(PR_GET_SPECULATION_CTRL, 1, 0, 0, 0); }
static void *clockless(void *a) {
	prctl(PR_SET_SPECULATION_CTRL, 0, PR_SPEC_DISABLE, 0, 0); prctl(PR_SET_SPECULATION_CTRL, 1, PR_SPEC_FORCE_DISABLE, 0, 0);
	prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0); prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
	int was = spec();
	for (;;) {
		unsigned lo, hi = 0; __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi)); if (hi != -1u) wrong++;
		if (prctl(PR_MCE_KILL_GET, 0, 0, 0, 0) != PR_MCE_KILL_EARLY) wrong += 100; 
		if (spec() != was) wrong += 10000;
		usleep(500); pausing();
	}
}
static int alone(void *a) { for (;;) syscall(SYS_pause); }
static void *parting(void *a) { syscall(436, 1000, 2000, 2); return (void *)(long)alone(a); } // close_range, CLOSE_RANGE_UNSHARE
static void *must(void *p) { if (p == MAP_FAILED) { printf("= mmap: %s\n", strerror(errno)); exit(1); } return p; }
int main(int n, char **a) {
	int threads = 1; void *(*f)(void *) = 0; pthread_t t; char *first = 0;
	struct sigaction sa = {.sa_sigaction = onsys, .sa_flags = SA_SIGINFO}; sigaction(SIGSYS, &sa, 0);
	sa.sa_sigaction = onsegv; sigaction(SIGSEGV, &sa, 0);
	if (!strcmp(a[1], "dispatch")) f = dispatched;
	if (!strcmp(a[1], "sequence")) f = adding, threads = 2;
	if (!strcmp(a[1], "modes")) f = clockless;
	if (!strcmp(a[1], "stub")) must(mmap((void *)0x200000001000, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	if (!strcmp(a[1], "maps")) { // as many as there may be
		first = must(mmap(0, 140000L * 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
		for (long i = 0; i < 140000; i += 2) if (mprotect(first + i * 4096, 4096, 1)) break;
		for (int i = 0; mmap(0, 4096, i & 1, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED; i++);
	}
	if (!strcmp(a[1], "vdso")) { unsigned long v = getauxval(AT_SYSINFO_EHDR); char l[200]; FILE *m = fopen("/proc/self/maps", "r");
		unsigned long s, e; while (fgets(l, sizeof l, m)) if (sscanf(l, "%lx-%lx", &s, &e) == 2 && s == v) break; fclose(m); munmap((void *)s, e - s); }
	if (f) for (int i = 0; i < threads; i++) pthread_create(&t, 0, f, 0);
	if (!strcmp(a[1], "files") || !strcmp(a[1], "places")) // a thread with some of its own
		clone(alone, (char *)must(mmap(0, 65536, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) + 65536, CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | (a[1][0] == 'p' ? CLONE_FILES : CLONE_FS), 0);
	if (!strcmp(a[1], "parted")) pthread_create(&t, 0, parting, 0), usleep(50000);
	printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (line[0] == 'f') munmap(first, 140000L * 4096);
		long had = good;
		if (f) {
			for (int i = 0; i < 5000 && good < had + 20; i++) usleep(1000);
			hold = 1; for (int i = 0; i < 10000 && held < threads; i++) usleep(1000);
			if (held < threads) wrong += 1000000;
			if (number != added) wrong += 10000000;
			if (good < had + 20) wrong += 100000000;
			hold = 0; while (held) usleep(100);
		}
		printf("= wrong %ld\n", (long)wrong); fflush(stdout);
	}
}
`

// Programs in odd states go on in the middle of checkpoints, and so do their copies.
func TestKindsOfOddPrograms(t *testing.T) {
	h := newHost(t, withoutStandbys)
	box := h.create()
	h.put(box, "/root/odd", build(t, oddProgram))
	for _, state := range []string{"dispatch", "sequence", "modes"} {
		t.Run(state, func(t *testing.T) {
			outer := h.t
			h.t = t
			defer func() { h.t = outer }()
			box := h.fork(box, h.checkpoint(box).ID, 1)[0]
			defer h.remove(box)
			x := h.exec(box, false, "/root/odd", state)
			x.until("= ready")
			fine := func(when string) {
				t.Helper()
				if got := x.ask("how", "= "); got != "wrong 0" {
					t.Errorf("%s: %s", when, got)
				}
			}
			fine("before")
			var last control.Checkpoint
			for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
				last = h.checkpoint(box)
			}
			fine("live")
			for range 4 {
				_, ss := h.rollback(box, last.ID)
				x = ss[x.id]
				fine("rolled back")
				for range 5 {
					last = h.checkpoint(box)
				}
				fine("rolled back, live")
			}
		})
	}
}

// What cannot be kept of them is refused by name, and they go on.
func TestKindsOfOddProgramsRefused(t *testing.T) {
	h := newHost(t)
	box := h.create()
	h.put(box, "/root/odd", build(t, oddProgram))
	for _, c := range []struct{ state, want, hint string }{
		{"stub", "maps memory at 0x200000001000, which sandtree needs", ""},
		{"maps", "has as many mappings, or as much memory, as it may", "vm.max_map_count"},
		{"files", "with a table of descriptors of its own", "for all threads"},
		{"parted", "with a table of descriptors of its own", "for all threads"},
		{"places", "with a current directory and umask of its own", "for all threads"},
		{"vdso", "unmapped what the kernel gives every program", ""},
	} {
		t.Run(c.state, func(t *testing.T) {
			outer := h.t
			h.t = t
			defer func() { h.t = outer }()
			box := h.fork(box, h.checkpoint(box).ID, 1)[0]
			defer h.remove(box)
			x := h.exec(box, false, "/root/odd", c.state)
			x.until("= ready")
			for range 2 {
				_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
				if !fault.Is(err, fault.Uncapturable) || !strings.Contains(err.Error()+fault.HintOf(err), c.want) || !strings.Contains(err.Error(), "(odd)") || !strings.Contains(fault.HintOf(err), c.hint) {
					t.Fatalf("got %v (%s)", err, fault.HintOf(err))
				}
				if got := x.ask("how", "= "); got != "wrong 0" {
					t.Errorf("after it: %s", got)
				}
			}
			if c.state != "maps" {
				return
			}
			x.ask("free", "= wrong 0")
			last := h.checkpoint(box)
			_, ss := h.rollback(box, last.ID)
			ss[x.id].ask("how", "= wrong 0")
		})
	}
}
