#include "fuzzed.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <time.h>

/* The kernel's form of what sigaction(2) sets, without a library between. */
struct kernel_action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static volatile unsigned handled;
static void first_handler(int sig) { (void)sig; handled++; }
static void second_handler(int sig) { (void)sig; handled += 1000; }
static void third_handler(int sig, siginfo_t *info, void *context) { (void)sig, (void)info, (void)context; handled += 1000000; }

/* Signals that may be anything: not those of faults, SIGTRAP (docs/limits.md), of the program's own
 * threads (SIGUSR2, SIGXCPU and the library's 32 and 33), and what cannot be handled. */
static int some_signal(void) {
	for (;;) {
		int s = 1 + pick(64);
		if (!strchr((const char[]){SIGKILL, SIGSTOP, SIGTRAP, SIGSEGV, SIGBUS, SIGUSR2, SIGXCPU, SIGCONT, SIGCHLD, 32, 33, 0}, s)) return s;
	}
}

static void action(void) {
	struct sigaction a = {0};
	int s = some_signal();
	switch (pick(5)) {
	case 0: a.sa_handler = SIG_IGN; break;
	case 1: a.sa_handler = SIG_DFL; break;
	case 2: a.sa_handler = first_handler; break;
	case 3: a.sa_handler = second_handler; break;
	case 4: a.sa_sigaction = third_handler, a.sa_flags = SA_SIGINFO; break;
	}
	a.sa_flags |= ONE_OF(0, SA_RESTART, SA_RESTART | SA_ONSTACK, SA_NODEFER | SA_RESTART, SA_RESTART | SA_NOCLDSTOP);
	for (unsigned n = pick(5); n; n--) sigaddset(&a.sa_mask, 1 + pick(64));
	sigaction(s, &a, NULL);
	done("action(%d) ", s);
}

static void mask(void) {
	sigset_t m;
	sigemptyset(&m);
	for (unsigned n = pick(8); n; n--) sigaddset(&m, some_signal());
	sigprocmask(SIG_BLOCK, &m, NULL); /* what waits would come if it were unblocked */
}

/* Signals that every thread blocks from the start, so that they wait when they
 * are sent to the process. */
static const char always_blocked[] = {SIGHUP, SIGTERM, SIGURG, SIGIO, SIGWINCH, SIGALRM, SIGUSR1, 35, 40, 41, 50, 64};

void block_signals(void) {
	sigset_t m;
	sigemptyset(&m);
	for (size_t i = 0; i < sizeof always_blocked; i++) sigaddset(&m, always_blocked[i]);
	sigprocmask(SIG_BLOCK, &m, NULL);
}

/* pending sends a signal that is blocked, so that it waits. */
static void pending(bool to_process) {
	int s = to_process ? always_blocked[pick(sizeof always_blocked)] : some_signal();
	sigset_t m;
	sigemptyset(&m), sigaddset(&m, s);
	sigprocmask(SIG_BLOCK, &m, NULL);
	siginfo_t info = {.si_signo = s, .si_code = SI_QUEUE};
	info.si_pid = getpid(), info.si_uid = getuid(), info.si_value.sival_int = pick(1 << 30);
	for (unsigned n = 1 + pick(3); n; n--) {
		switch (pick(3)) {
		case 0: to_process ? kill(getpid(), s) : syscall(SYS_tgkill, getpid(), gettid(), s); break;
		case 1: case 2: to_process ? syscall(SYS_rt_sigqueueinfo, getpid(), s, &info) : syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), s, &info); break;
		}
	}
	done("pending(%d) ", s);
}

static void alternate(void) {
	static unsigned char stacks[2][1 << 15];
	stack_t s = {.ss_sp = stacks[pick(2)], .ss_size = 1 << (13 + pick(3)), .ss_flags = ONE_OF(0, SS_DISABLE, 1u << 31 /* SS_AUTODISARM */)};
	sigaltstack(&s, NULL);
	done("alternate ");
}

static struct { int id; clockid_t clock; } made[16];
static int timers;
static pid_t owner;

static void timer(void) {
	if (owner != getpid()) owner = getpid(), timers = 0; /* not inherited */
	if (timers == 16) return;
	struct sigevent e = {.sigev_notify = ONE_OF(SIGEV_SIGNAL, SIGEV_NONE, SIGEV_THREAD_ID), .sigev_signo = some_signal()};
	e.sigev_value.sival_int = pick(1 << 30);
	e._sigev_un._tid = gettid();
	int id;
	clockid_t clock = ONE_OF(CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME, CLOCK_PROCESS_CPUTIME_ID);
	if (syscall(SYS_timer_create, clock, &e, &id)) return;
	if (chance(20)) { /* numbers with holes */
		syscall(SYS_timer_delete, id);
		return;
	}
	struct itimerspec t = {0};
	if (chance(80)) middle(&t.it_value, 1 + pick(20));
	if (clock == CLOCK_PROCESS_CPUTIME_ID) t.it_value.tv_sec = SPAN * (1 + pick(20)) + SPAN / 2; /* which hardly passes */
	if (chance(50)) t.it_interval = (struct timespec){1000 + pick(1000), pick(1000000000)};
	if (t.it_value.tv_sec) syscall(SYS_timer_settime, id, 0, &t, NULL);
	made[timers].id = id, made[timers++].clock = clock;
	done("timer(%d) ", (int)clock);
}

static void interval_timer(void) {
	struct timespec t;
	middle(&t, 1 + pick(20));
	int which = ONE_OF(ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF);
	if (which != ITIMER_REAL) t.tv_sec = SPAN * (1 + pick(20)) + SPAN / 2;
	struct itimerval v = {{1000 + pick(100), pick(1000000)}, {t.tv_sec, t.tv_nsec / 1000}};
	setitimer(which, &v, NULL);
	done("itimer ");
}

void signal_step(void) {
	switch (pick(7)) {
	case 0: case 1: action(); break;
	case 2: mask(); break;
	case 3: pending(true); break;
	case 4: alternate(); break;
	case 5: timer(); break;
	case 6: chance(30) ? interval_timer() : pending(false); break;
	}
}

/* Remaining times are told as spans since the clock's start: those of a timer that
 * runs stay the same. The middle of one is far from its ends. */
static long now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

void middle(struct timespec *t, unsigned spans) {
	t->tv_sec = (now() / SPAN + spans) * SPAN + SPAN / 2 - now();
	t->tv_nsec = 0;
}

long span_of(const struct timespec *t) { return t->tv_sec || t->tv_nsec ? (now() + t->tv_sec) / SPAN : 0; }

void own_thread_steps(void) {
	for (unsigned n = pick(4); n; n--) {
		switch (pick(5)) {
		case 4: own_credentials(); break;
		case 0: mask(); break;
		case 1: pending(false); break;
		case 2: timer(); break;
		case 3: {
			/* A stack of its own: the process's other ones are the main thread's. */
			void *m = mmap(NULL, 1 << 14, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			stack_t s = {.ss_sp = m, .ss_size = 1 << 14};
			sigaltstack(&s, NULL);
		}
		}
	}
	attribute_step();
}

void tell_thread(bool drain) {
	static char status[4096];
	sigset_t blocked;
	ssize_t n = read_proc("thread-self/status", status, sizeof status - 1);
	status[n > 0 ? n : 0] = 0;
	for (char *line = strtok(status, "\n"); line; line = strtok(NULL, "\n"))
		if (!strncmp(line, "Sig", 3) ? strncmp(line, "SigQ", 4) : !strncmp(line, "ShdPnd", 6) || !strncmp(line, "Cap", 3) || !strncmp(line, "Uid", 3) ||
			!strncmp(line, "Gid", 3) || !strncmp(line, "Groups", 6) || !strncmp(line, "Secc", 4) || !strncmp(line, "NoNew", 5) || !strncmp(line, "Name", 4) ||
			!strncmp(line, "Cpus_allowed:", 13) || !strncmp(line, "Umask", 5) || !strncmp(line, "NSp", 3) || !strncmp(line, "NSs", 3) || !strncmp(line, "NSt", 3) || !strncmp(line, "Spec", 4) || !strncmp(line, "THP", 3))
			say(" %s\n", line);
	stack_t s;
	sigaltstack(NULL, &s);
	say(" altstack %p %zu %x securebits %d keepcaps %d getcpu %ld\n", s.ss_sp, s.ss_size, s.ss_flags, prctl(PR_GET_SECUREBITS), prctl(PR_GET_KEEPCAPS),
		syscall(SYS_getcpu, NULL, NULL, NULL) ? (long)errno : 0);
	if (!drain) return;
	sigfillset(&blocked);
	sigdelset(&blocked, SIGUSR2);
	siginfo_t info;
	struct timespec zero = {0};
	for (int sig; (sig = sigtimedwait(&blocked, &info, &zero)) > 0;)
		if (sig != SIGCHLD) say(" pending %d code %d pid %d uid %d value %d\n", sig, info.si_code, info.si_pid, info.si_uid, info.si_value.sival_int);
}

void tell_signals(bool drain) {
	for (int s = 1; s <= 64; s++) {
		struct kernel_action a;
		if (syscall(SYS_rt_sigaction, s, NULL, &a, 8)) continue;
		if (a.handler || a.flags || a.mask) say("action %d %p flags %lx restorer %d mask %lx\n", s, (void *)a.handler, a.flags, a.restorer != NULL, a.mask);
	}
	say("handled %u\n", handled);
	for (int i = 0; i < 3; i++) {
		struct { struct timeval interval, value; } v;
		syscall(SYS_getitimer, i, &v);
		struct timespec left = {v.value.tv_sec, v.value.tv_usec * 1000};
		if (v.value.tv_sec || v.interval.tv_sec) say("itimer %d interval %ld.%06ld span %ld\n", i, v.interval.tv_sec, v.interval.tv_usec, i ? left.tv_sec / SPAN : span_of(&left));
	}
	if (owner != getpid()) timers = 0;
	for (int i = 0; i < timers; i++) {
		struct itimerspec t;
		int id = made[i].id;
		if (syscall(SYS_timer_gettime, id, &t)) {
			say("timer %d: %s\n", id, strerror(errno));
			continue;
		}
		say("timer %d interval %ld.%09ld span %ld overrun %ld\n", id, t.it_interval.tv_sec, t.it_interval.tv_nsec,
			made[i].clock == CLOCK_PROCESS_CPUTIME_ID ? t.it_value.tv_sec / SPAN : span_of(&t.it_value), syscall(SYS_timer_getoverrun, id));
	}
	static char listed[1 << 14];
	ssize_t n = read_proc("self/timers", listed, sizeof listed - 1);
	if (n > 0) say("timers %.*s\n", (int)n, listed);
	(void)drain;
}
