#include "fuzzed.h"
#include <grp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sched.h>

/* A process speaks to its parent, or to who took its parent's part, over a pair
 * of pipes: a letter asks, and a length and the text answer. */
static int from = 0, to = 1;

enum { RUNS, STOPPED, ZOMBIE };
static struct child {
	pid_t pid; /* of the process that answers, or has ended */
	int ask, answer;
	int state;
	char name[64];
} children[8];
static int count;

static void put(int fd, const void *p, size_t n) {
	while (n) {
		ssize_t k = write(fd, p, n);
		if (k < 0 && errno == EINTR) continue;
		if (k <= 0) die("write");
		p = (const char *)p + k, n -= k;
	}
}

static bool get(int fd, void *p, size_t n) {
	while (n) {
		ssize_t k = read(fd, p, n);
		if (k < 0 && errno == EINTR) continue;
		if (k < 0) die("read");
		if (!k) return false;
		p = (char *)p + k, n -= k;
	}
	return true;
}

bool adopts;

bool has_children(void) { return count > 0; }

/* inherit makes a child's copy of the parent's own state its own. */
void inherit(void) {
	for (int i = 0; i < count; i++)
		if (children[i].state != ZOMBIE) close(children[i].ask), close(children[i].answer);
	count = 0;
	steps_len = 0;
	adopts = apart = false;
}

static void become(const struct child *c, int down[2], int up[2], int depth) {
	bool stops = c->state == STOPPED; /* its own children take this one's place */
	inherit();
	close(down[1]), close(up[0]);
	if (from) close(from), close(to);
	from = own_fd(down[0]), to = own_fd(up[1]);
	strcpy(name, c->name);
	prctl(PR_SET_PDEATHSIG, 0);
	bool session = chance(25), group = chance(25);
	if (chance(20)) { /* an orphan: the process between has ended */
		if (session) setsid();
		pid_t between = getpid(), p = fork();
		if (p < 0) die("fork");
		if (p) _exit(pick(100));
		while (getppid() == between) sched_yield(); /* until a reaper is the parent */
		done("orphan ");
	} else if (session) {
		setsid();
		done("setsid ");
		if (chance(40)) controlling_terminal();
	} else if (group) {
		setpgid(0, 0);
		done("setpgid ");
	}
	settle(depth);
	pid_t me = getpid();
	put(to, &me, sizeof me);
	if (stops) raise(SIGSTOP);
	serve();
}

void start_child(int depth) {
	if (count == sizeof children / sizeof *children) return;
	struct child *c = &children[count];
	int n = snprintf(c->name, sizeof c->name, "%s.%d", name, count);
	if (n >= (int)sizeof c->name) return;
	uint64_t seed = draw();
	c->state = ONE_OF(RUNS, RUNS, RUNS, RUNS, STOPPED, ZOMBIE);
	if (c->state == ZOMBIE) {
		pid_t p = fork();
		if (p < 0) die("fork");
		if (!p) {
			signal(SIGTERM, SIG_DFL);
			sigset_t all;
			sigfillset(&all);
			sigprocmask(SIG_UNBLOCK, &all, NULL);
			if (chance(30)) {
				setgroups(1, &(gid_t){pick(1000)});
				int g = setresgid(pick(1000), pick(1000), pick(1000));
				int u = setresuid(1 + pick(1000), 1 + pick(1000), 1 + pick(1000));
				(void)g, (void)u; /* who is not root any more stays who it is */
			}
			if (chance(50)) kill(getpid(), SIGKILL);
			_exit(pick(256));
		}
		siginfo_t info;
		if (waitid(P_PID, p, &info, WEXITED | WNOWAIT)) die("waitid");
		c->pid = p;
		count++;
		done("zombie ");
		return;
	}
	int down[2], up[2];
	if (pipe2(down, O_CLOEXEC) || pipe2(up, O_CLOEXEC)) die("pipe");
	c->pid = getpid();
	pid_t p = fork();
	if (p < 0) die("fork");
	if (!p) {
		rng = seed;
		become(c, down, up, depth);
	}
	close(down[0]), close(up[1]);
	c->ask = own_fd(down[1]), c->answer = own_fd(up[0]);
	if (!get(c->answer, &c->pid, sizeof c->pid)) die("a child ended");
	if (c->state == STOPPED) {
		siginfo_t info;
		/* Who is not its parent sees that it stands in /proc. */
		char path[64], status[256];
		snprintf(path, sizeof path, "%d/stat", c->pid);
		do {
			ssize_t n = read_proc(path, status, sizeof status - 1);
			if (n < 0) die(path);
			status[n] = 0;
			sched_yield();
		} while (!strstr(status, ") T "));
		if (p == c->pid && chance(50)) waitid(P_PID, p, &info, WSTOPPED);
	}
	count++;
	done("child%s ", c->state == STOPPED ? "(stopped)" : "");
}

static void ask_child(struct child *c, char what) {
	static char buffer[1 << 14];
	size_t n;
	put(c->ask, &what, 1);
	if (!get(c->answer, &n, sizeof n)) die("a child ended");
	while (n) {
		size_t part = n < sizeof buffer ? n : sizeof buffer;
		if (!get(c->answer, buffer, part)) die("a child ended");
		say("%.*s", (int)part, buffer);
		n -= part;
	}
}

static void steps_of_children(void) {
	for (int i = 0; i < count; i++)
		if (children[i].state == RUNS) ask_child(&children[i], 's');
}

void tell_children(bool drain) {
	for (int i = 0; i < count; i++) {
		struct child *c = &children[i];
		char path[64], stat[512];
		snprintf(path, sizeof path, "%d/stat", c->pid);
		ssize_t n = read_proc(path, stat, sizeof stat - 1);
		char *fields = NULL, state = '?';
		int parent = 0, group = 0, session = 0;
		if (n > 0) {
			stat[n] = 0;
			fields = strrchr(stat, ')');
		}
		if (fields) sscanf(fields + 2, "%c %d %d %d", &state, &parent, &group, &session);
		if (state == 'R' || state == 'D') state = c->state == STOPPED ? 'T' : 'S'; /* it is about to stand, or to wait */
		say("child %s pid %d state %c parent %d group %d session %d\n", c->name, c->pid, state, parent, group, session);
		if (c->state == STOPPED && drain) {
			if (kill(c->pid, SIGCONT)) say("it stands still: %s\n", strerror(errno)); /* one of another user */
			else c->state = RUNS;
		}
		if (c->state == RUNS) ask_child(c, drain ? 'd' : 't');
	}
	char path[64], listed[512];
	snprintf(path, sizeof path, "self/task/%d/children", getpid());
	ssize_t n = read_proc(path, listed, sizeof listed);
	if (n > 0 && !adopts) say("children %.*s\n", (int)n, listed); /* what was adopted may stand behind the others: docs/limits.md */
	siginfo_t info = {0};
	for (; drain && !waitid(P_ALL, 0, &info, WEXITED | WNOHANG) && info.si_pid; info.si_pid = 0)
		say("reaped %d code %d status %d uid %d\n", adopts ? 0 : info.si_pid, info.si_code, info.si_status, info.si_uid);
}

static void say_steps(void) {
	forget();
	say("[%s %d] %.*s\n", name, getpid(), (int)steps_len, steps);
	steps_of_children();
}

/* serve answers until nobody asks any more. */
void serve(void) {
	char line[64];
	for (;;) {
		char what = 0;
		if (from) {
			if (!get(from, &what, 1)) _exit(0);
		} else {
			size_t n = 0;
			do if (!get(0, line + n, 1)) _exit(0);
			while (line[n] != '\n' && ++n < sizeof line);
			what = *line;
		}
		forget();
		switch (what) {
		case 't': tell(false); break;
		case 'd': tell(true); break;
		case 's': say_steps(); break;
		default: _exit(3);
		}
		if (from) put(to, &text_len, sizeof text_len);
		put(to, text, text_len);
		if (!from) put(1, ".\n", 2);
	}
}
