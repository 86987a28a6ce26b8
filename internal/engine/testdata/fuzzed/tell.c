#include "fuzzed.h"
#include <linux/capability.h>
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <xmmintrin.h>

ssize_t read_proc(const char *path, char *to, size_t max) {
	int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	size_t len = 0;
	for (ssize_t n; len < max && (n = read(fd, to + len, max - len)) > 0;) len += n;
	close(fd);
	return len;
}

static int smaller(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int list(const char *path, int *out, int max) {
	static char entries[1 << 16];
	struct entry { uint64_t ino; int64_t off; unsigned short len; unsigned char type; char name[]; };
	int dir = openat(proc_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
	if (dir < 0) return -1;
	for (long n; (n = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0;)
		for (long at = 0; at < n;) {
			struct entry *e = (void *)(entries + at);
			int v = atoi(e->name);
			if (e->name[0] != '.' && v != dir && count < max) out[count++] = v;
			at += e->len;
		}
	close(dir);
	qsort(out, count, sizeof *out, smaller);
	return count;
}

void tell_process(void) {
	static char content[1 << 13];
	say("process %s pid %d group %d session %d\n", name, getpid(), getpgid(0), getsid(0));
	ssize_t got = read_proc("self/stat", content, sizeof content - 1);
	content[got > 0 ? got : 0] = 0;
	int terminal = 0, foreground = 0;
	char *fields = strrchr(content, ')');
	if (fields) sscanf(fields + 2, "%*c %*d %*d %*d %d %d", &terminal, &foreground);
	say("terminal %x foreground %d\n", terminal, foreground);
	for (int i = 0; i < RLIM_NLIMITS; i++) {
		struct rlimit r;
		getrlimit(i, &r);
		say("limit %d %lx %lx\n", i, r.rlim_cur, r.rlim_max);
	}
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	unsigned short cw;
	__asm__ volatile("fnstcw %0" : "=m"(cw));
	say("nice %d ioprio %lx policy %d cpus %d csr %x cw %x\n", getpriority(PRIO_PROCESS, 0), syscall(SYS_ioprio_get, 1, 0), sched_getscheduler(0), CPU_COUNT(&set), _mm_getcsr() & ~0x3f, cw);
	int reaper = 0, death = 0;
	prctl(PR_GET_CHILD_SUBREAPER, &reaper), prctl(PR_GET_PDEATHSIG, &death);
	say("slack %d reaper %d death %d thp %d mce %d dumpable %d keepcaps %d securebits %d personality %x membarrier %ld\n", prctl(PR_GET_TIMERSLACK), reaper, death,
		prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), prctl(PR_GET_DUMPABLE), prctl(PR_GET_KEEPCAPS), prctl(PR_GET_SECUREBITS),
		personality(0xffffffff), syscall(SYS_membarrier, 1 << 9 /* MEMBARRIER_CMD_GET_REGISTRATIONS */, 0, 0));
	for (long c = 0; c < 41; c++)
		if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, c, 0, 0) == 1) say("ambient %ld\n", c);
	for (const char *const *f = (const char *const[]){"oom_score_adj", "cmdline", "environ", "loginuid", "sessionid", "setgroups", "uid_map", "timerslack_ns", 0}; *f; f++) {
		char path[32];
		snprintf(path, sizeof path, "self/%s", *f);
		ssize_t n = read_proc(path, content, sizeof content);
		for (ssize_t i = 0; i < n; i++)
			if (content[i] == 0 || content[i] == '\n') content[i] = ' ';
		say("%s %.*s\n", *f, n > 0 ? (int)n : 1, n > 0 ? content : "!");
	}
	for (const char *const *f = (const char *const[]){"cwd", "root", "exe", 0}; *f; f++) {
		char path[32];
		snprintf(path, sizeof path, "self/%s", *f);
		ssize_t n = readlinkat(proc_fd, path, content, sizeof content);
		if (n > 10 && !memcmp(content + n - 10, " (deleted)", 10)) say("%s deleted\n", *f); /* by another name: docs/limits.md */
		else say("%s %.*s\n", *f, n > 0 ? (int)n : 1, n > 0 ? content : "!");
	}
	void *head = NULL;
	size_t head_size = 0;
	int *clear = NULL;
	syscall(SYS_get_robust_list, 0, &head, &head_size), prctl(PR_GET_TID_ADDRESS, &clear);
	say("robust %p %zu clear %p mdwe %d\n", head, head_size, (void *)clear, prctl(66 /* PR_GET_MDWE */, 0, 0, 0, 0));
	struct utsname u;
	uname(&u);
	say("release %s getcpu %ld\n", u.release, syscall(SYS_getcpu, NULL, NULL, NULL) ? (long)errno : 0);
}

void tell(bool drain) {
	tell_process();
	tell_thread(drain);
	tell_signals(drain);
	tell_threads(drain);
	tell_memory(drain);
	if (drain) drain_descriptors();
	else tell_descriptors();
	tell_sysv(drain);
	tell_own_queue(drain);
	tell_children(drain);
}
