package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// callsProgram has a thread for each blocking call of a table, in one of three
// ways. Those with a timeout time out again and again, and measure themselves.
// Those without one wait for what never comes. Those that are interrupted wait
// long, and each signal that they are sent must end one wait, with EINTR, and run
// one handler. It answers lines with what went wrong since the last one.
const callsProgram = `
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define MS 150L
static long now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000 + t.tv_nsec / 1000; }
static struct timespec rel(long ms) { return (struct timespec){ms / 1000, ms % 1000 * 1000000}; }
static struct timespec at(int clock, long ms) {
	struct timespec t; clock_gettime(clock, &t); t.tv_nsec += ms % 1000 * 1000000; t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000; t.tv_nsec %= 1000000000; return t;
}
static long today(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000 + t.tv_nsec / 1000; }
static int pipefd[2], full[2], ep, pair[2], dgram[2], sendfull[2], tcp, tcpin, efd, tfd, sfd, ifd, unixfd, sem, msq, msqfull, lockfd; static pid_t kid;
static int word = 1, pi; static sigset_t other, none;
static void waits(int fd, int option, long ms) { struct timeval t = {ms / 1000, ms % 1000 * 1000}; setsockopt(fd, SOL_SOCKET, option, &t, sizeof t); }
static int err(long r) { return r < 0 ? errno : r == 0 ? 0 : -1; }
static char byte[100000];

static int c_nanosleep(long ms) { struct timespec t = rel(ms); return err(nanosleep(&t, 0)); }
static int c_nanosleep_left(long ms) { struct timespec t = rel(ms); return err(nanosleep(&t, &t)); } // as sleep(3)
static int c_clock_left(long ms) { struct timespec t = rel(ms); return clock_nanosleep(CLOCK_BOOTTIME, 0, &t, &t); }
static int c_clock_rel(long ms) { struct timespec t = rel(ms); return clock_nanosleep(CLOCK_MONOTONIC, 0, &t, 0); }
static int c_clock_abs(long ms) { struct timespec t = at(CLOCK_MONOTONIC, ms); return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, 0); }
static int c_clock_boot(long ms) { struct timespec t = at(CLOCK_BOOTTIME, ms); return clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &t, 0); }
static int c_clock_real(long ms) { struct timespec t = at(CLOCK_REALTIME, ms); return clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, 0); }
static int c_poll(long ms) { struct pollfd p = {pipefd[0], POLLIN}; return err(poll(&p, 1, ms)); }
static int c_ppoll(long ms) { struct pollfd p = {pipefd[0], POLLIN}; struct timespec t = rel(ms); return err(syscall(SYS_ppoll, &p, 1, ms < 0 ? 0 : &t, &none, 8)); }
static int c_select(long ms) { fd_set s; FD_ZERO(&s); FD_SET(pipefd[0], &s); struct timeval t = {ms / 1000, ms % 1000 * 1000}; return err(syscall(SYS_select, pipefd[0] + 1, &s, 0, 0, ms < 0 ? 0 : &t)); }
static int c_pselect(long ms) { fd_set s; FD_ZERO(&s); FD_SET(pipefd[0], &s); struct timespec t = rel(ms); return err(syscall(SYS_pselect6, pipefd[0] + 1, &s, 0, 0, ms < 0 ? 0 : &t, 0)); }
static int c_epoll_wait(long ms) { struct epoll_event e; return err(epoll_wait(ep, &e, 1, ms)); }
static int c_epoll_pwait(long ms) { struct epoll_event e; return err(epoll_pwait(ep, &e, 1, ms, &none)); }
static int c_epoll_pwait2(long ms) { struct epoll_event e; struct timespec t = rel(ms); return err(syscall(441, ep, &e, 1, ms < 0 ? 0 : &t, 0, 8)); }
static int c_futex(long ms) { struct timespec t = rel(ms); return err(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, ms < 0 ? 0 : &t, 0, 0)); }
static int c_futex_abs(long ms) { struct timespec t = at(CLOCK_MONOTONIC, ms); return err(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 1, &t, 0, -1)); }
static int c_futex_pi(long ms) { struct timespec t = at(CLOCK_REALTIME, ms); return err(syscall(SYS_futex, &pi, FUTEX_LOCK_PI_PRIVATE, 0, ms < 0 ? 0 : &t, 0, 0)); }
static int c_sigtimedwait(long ms) { struct timespec t = rel(ms); return err(syscall(SYS_rt_sigtimedwait, &other, 0, ms < 0 ? 0 : &t, 8)); }
static int c_semtimedop(long ms) { struct timespec t = rel(ms); struct sembuf b = {0, -1, 0}; return err(syscall(SYS_semtimedop, sem, &b, 1, ms < 0 ? 0 : &t)); }
static int c_recv(long ms) { return err(recv(pair[0], byte, 1, 0)); }
static int c_read_socket(long ms) { return err(read(pair[0], byte, 1)); }
static int c_recvmsg(long ms) { struct iovec v = {byte, 1}; struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1}; return err(recvmsg(dgram[0], &m, 0)); }
static int c_recv_tcp(long ms) { return err(recv(tcpin, byte, 1, 0)); }
static int c_accept(long ms) { return err(accept(tcp, 0, 0)); }
static int c_send(long ms) { return err(send(sendfull[0], byte, sizeof byte, 0)); }
static int c_pause(long ms) { return err(pause()); }
static int c_sigsuspend(long ms) { return err(syscall(SYS_rt_sigsuspend, &none, 8)); }
static int c_read(long ms) { return err(read(pipefd[0], byte, 1)); }
static int c_write(long ms) { return err(write(full[1], byte, 4096)); }
static int c_eventfd(long ms) { return err(read(efd, byte, 8)); }
static int c_timerfd(long ms) { return err(read(tfd, byte, 8)); }
static int c_signalfd(long ms) { return err(read(sfd, byte, 128)); }
static int c_inotify(long ms) { return err(read(ifd, byte, 4096)); }
static int c_wait4(long ms) { return err(wait4(kid, 0, 0, 0)); }
static int c_waitid(long ms) { siginfo_t s; return err(waitid(P_PID, kid, &s, WEXITED)); }
static int c_msgrcv(long ms) { struct { long t; char c[8]; } m; return err(msgrcv(msq, &m, 8, 7, 0)); }
static int c_msgsnd(long ms) { static struct { long t; char c[8192]; } m = {1}; return err(msgsnd(msqfull, &m, 8192, 0)); }
static int c_flock(long ms) { int fd = open("/tmp/lock", O_RDWR); int r = err(flock(fd, LOCK_EX)); close(fd); return r; }
static int c_lock(long ms) { struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1}; int fd = open("/tmp/lock", O_RDWR); int r = err(fcntl(fd, F_OFD_SETLKW, &l)); close(fd); return r; }
static int c_fifo(long ms) { return err(open("/tmp/fifo", O_RDONLY)); }
static int c_connect(long ms) { // to a listener whose queue is full
	int fd = socket(AF_UNIX, SOCK_STREAM, 0); struct sockaddr_un a = {AF_UNIX, "\0full"};
	if (ms > 0) waits(fd, SO_SNDTIMEO, ms);
	int r = err(connect(fd, (void *)&a, sizeof a.sun_family + 5)); close(fd); return r;
}

// The table: the call, how long (0: for ever), what it returns then.
static struct row { const char *name; int (*call)(long); long ms; int want; int interrupted; _Atomic long done, wrong, least, most, eintr; _Atomic int last, tid; pthread_t thread; timer_t timer; } rows[] = {
	{"nanosleep that tells what remains", c_nanosleep_left, MS}, {"clock_nanosleep that tells what remains", c_clock_left, MS},
	{"nanosleep", c_nanosleep, MS}, {"clock_nanosleep", c_clock_rel, MS}, {"clock_nanosleep, absolute", c_clock_abs, MS}, {"clock_nanosleep, since boot", c_clock_boot, MS},
	{"clock_nanosleep, of the day", c_clock_real, MS}, {"poll", c_poll, MS}, {"ppoll", c_ppoll, MS}, {"select", c_select, MS}, {"pselect", c_pselect, MS},
	{"epoll_wait", c_epoll_wait, MS}, {"epoll_pwait", c_epoll_pwait, MS}, {"epoll_pwait2", c_epoll_pwait2, MS},
	{"futex", c_futex, MS, ETIMEDOUT}, {"futex, absolute", c_futex_abs, MS, ETIMEDOUT}, {"futex, PI", c_futex_pi, MS, ETIMEDOUT},
	{"sigtimedwait", c_sigtimedwait, MS, EAGAIN}, {"semtimedop", c_semtimedop, MS, EAGAIN},
	{"recv, SO_RCVTIMEO", c_recv, MS, EAGAIN}, {"read, SO_RCVTIMEO", c_read_socket, MS, EAGAIN}, {"recvmsg, SO_RCVTIMEO", c_recvmsg, MS, EAGAIN}, {"recv of TCP, SO_RCVTIMEO", c_recv_tcp, MS, EAGAIN},
	{"accept, SO_RCVTIMEO", c_accept, MS, EAGAIN}, {"send, SO_SNDTIMEO", c_send, MS, EAGAIN}, {"connect, SO_SNDTIMEO", c_connect, MS, EAGAIN},
	{"pause", c_pause}, {"sigsuspend", c_sigsuspend}, {"read", c_read}, {"write", c_write}, {"eventfd", c_eventfd}, {"timerfd", c_timerfd}, {"signalfd", c_signalfd}, {"inotify", c_inotify},
	{"wait4", c_wait4}, {"waitid", c_waitid}, {"msgrcv", c_msgrcv}, {"msgsnd", c_msgsnd}, {"flock", c_flock}, {"lock", c_lock}, {"open of a FIFO", c_fifo},
	{"connect", c_connect}, {"poll", c_poll, -1}, {"ppoll", c_ppoll, -1}, {"select", c_select, -1}, {"epoll_wait", c_epoll_wait, -1}, {"futex", c_futex, -1}, {"futex, PI", c_futex_pi, -1}, {"sigwaitinfo", c_sigtimedwait, -1}, {"semop", c_semtimedop, -1},
#define LONG 1000000, EINTR, 1
	{"nanosleep", c_nanosleep, LONG}, {"poll", c_poll, LONG}, {"epoll_wait", c_epoll_wait, LONG}, {"select", c_select, LONG}, {"sigtimedwait", c_sigtimedwait, LONG}, {"semtimedop", c_semtimedop, LONG},
	{"futex", c_futex, LONG}, {"read", c_read, LONG}, {"msgrcv", c_msgrcv, LONG}, {"pause", c_pause, LONG}, {"epoll_pwait2", c_epoll_pwait2, LONG},
};
#define N (sizeof rows / sizeof *rows)
static __thread struct row *mine; static _Atomic long handled;
static void handler(int s) { handled++; }
static void *run(void *a) {
	struct row *r = mine = a; sigset_t all; sigfillset(&all);
	if (r->interrupted) sigdelset(&all, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &all, 0);
	r->tid = gettid();
	for (;;) {
		long begin = now(), day = today(); int got = r->call(r->ms); long took = now() - begin;
		if (today() - day > took) took = today() - day; // the machine's clock goes on while a checkpoint rests
		if (r->interrupted) { if (got == EINTR) r->eintr++; else { r->last = got; r->wrong++; } continue; }
		if (r->ms <= 0 || got != r->want || took < r->ms * 1000 - 1000) { r->last = got; r->least = took; r->wrong++; continue; }
		if (took > r->most) r->most = took;
		r->done++;
	}
}
static int sleeps(int tid) { // in its call
	char p[64], b[512]; snprintf(p, sizeof p, "/proc/self/task/%d/stat", tid); int fd = open(p, O_RDONLY); int n = read(fd, b, sizeof b - 1); close(fd);
	b[n > 0 ? n : 0] = 0; char *c = strrchr(b, ')'); return c && c[2] == 'S';
}
static void deny(int nr) { // ends whoever makes the call
	struct sock_filter code[] = {{0x20, 0, 0, 0}, {0x15, 0, 1, nr}, {6, 0, 0, SECCOMP_RET_KILL_PROCESS}, {6, 0, 0, SECCOMP_RET_ALLOW}};
	struct sock_fprog prog = {4, code};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) _exit(9);
}
int main(int argc, char **argv) {
	if (argc > 1) deny(atoi(argv[1]));
	struct sigaction sa = {.sa_handler = handler}; sigaction(SIGUSR1, &sa, 0); // without SA_RESTART
	sigemptyset(&none); sigfillset(&none); sigdelset(&none, SIGUSR1); sigemptyset(&other); sigaddset(&other, 50);
	if (pipe(pipefd) || pipe2(full, O_NONBLOCK) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || socketpair(AF_UNIX, SOCK_DGRAM, 0, dgram) || socketpair(AF_UNIX, SOCK_STREAM, 0, sendfull)) return 2;
	while (write(full[1], byte, 4096) > 0); fcntl(full[1], F_SETFL, 0);
	fcntl(sendfull[0], F_SETFL, O_NONBLOCK); while (send(sendfull[0], byte, sizeof byte, 0) > 0); while (send(sendfull[0], byte, 1, 0) > 0); fcntl(sendfull[0], F_SETFL, 0);
	waits(pair[0], SO_RCVTIMEO, MS); waits(dgram[0], SO_RCVTIMEO, MS); waits(sendfull[0], SO_SNDTIMEO, MS);
	ep = epoll_create1(0); struct epoll_event e = {EPOLLIN}; epoll_ctl(ep, EPOLL_CTL_ADD, pipefd[0], &e);
	tcp = socket(AF_INET, SOCK_STREAM, 0); struct sockaddr_in in = {AF_INET, htons(4567), {htonl(INADDR_LOOPBACK)}}; socklen_t len = sizeof in;
	if (bind(tcp, (void *)&in, len) || listen(tcp, 5)) return 3;
	int out = socket(AF_INET, SOCK_STREAM, 0); if (connect(out, (void *)&in, len)) return 4;
	tcpin = accept(tcp, 0, 0); waits(tcpin, SO_RCVTIMEO, MS); waits(tcp, SO_RCVTIMEO, MS);
	efd = eventfd(0, 0); tfd = timerfd_create(CLOCK_MONOTONIC, 0); sfd = signalfd(-1, &other, 0); ifd = inotify_init(); 
	unixfd = socket(AF_UNIX, SOCK_STREAM, 0); struct sockaddr_un un = {AF_UNIX, "\0full"}; int more = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(unixfd, (void *)&un, sizeof un.sun_family + 5) || listen(unixfd, 0) || connect(more, (void *)&un, sizeof un.sun_family + 5)) return 5;
	sem = semget(IPC_PRIVATE, 1, 0600); msq = msgget(IPC_PRIVATE, 0600); msqfull = msgget(IPC_PRIVATE, 0600);
	static struct { long t; char c[8192]; } m = {1}; while (msgsnd(msqfull, &m, 8192, IPC_NOWAIT) == 0);
	mkfifo("/tmp/fifo", 0600); lockfd = open("/tmp/lock", O_RDWR | O_CREAT, 0600); flock(lockfd, LOCK_EX);
	struct flock fl = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1}; fcntl(lockfd, F_OFD_SETLK, &fl);
	if ((kid = fork()) == 0) for (;;) pause();
	syscall(SYS_futex, &pi, FUTEX_LOCK_PI_PRIVATE, 0, 0, 0, 0);
	pthread_attr_t attr; pthread_attr_init(&attr); pthread_attr_setstacksize(&attr, 65536);
	for (unsigned i = 0; i < N; i++) if (pthread_create(&rows[i].thread, &attr, run, &rows[i])) return 6;
	for (unsigned i = 0; i < N; i++) while (!rows[i].tid) usleep(100);
	for (unsigned i = 0; i < N; i++) if (rows[i].interrupted) {
		struct sigevent ev = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1}; ev._sigev_un._tid = rows[i].tid;
		if (timer_create(CLOCK_MONOTONIC, &ev, &rows[i].timer)) return 7;
	}
	char line[100]; printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (line[0] == 'r') for (unsigned i = 0; i < N; i++) rows[i].done = rows[i].most = 0; // what went wrong stays
		if (line[0] == 'p') // each gets a signal while it waits
			for (unsigned i = 0; i < N; i++) if (rows[i].interrupted) {
				for (int k = 0; k < 5000 && !sleeps(rows[i].tid); k++) usleep(1000);
				long had = rows[i].eintr, ran = handled; pthread_kill(rows[i].thread, SIGUSR1);
				for (int k = 0; k < 5000 && (rows[i].eintr == had || handled == ran); k++) usleep(1000);
				if (rows[i].eintr != had + 1 || handled != ran + 1) { rows[i].wrong++; rows[i].last = 10000 + (rows[i].eintr - had) * 100 + (handled - ran); }
			}
		if (line[0] == 't') { // all get one from a timer, which may fire while they stand
			long had[N], ran = handled; int n = 0;
			for (unsigned i = 0; i < N; i++) if (rows[i].interrupted) {
				for (int k = 0; k < 5000 && !sleeps(rows[i].tid); k++) usleep(1000);
				had[i] = rows[i].eintr; n++;
			}
			for (unsigned i = 0; i < N; i++) if (rows[i].interrupted) {
				struct itimerspec v = {{0, 0}, {0, 2000000 + (random() % 8) * 1000000}}; timer_settime(rows[i].timer, 0, &v, 0);
			}
			for (int k = 0; k < 5000 && handled < ran + n; k++) usleep(1000);
			for (unsigned i = 0; i < N; i++) if (rows[i].interrupted) {
				for (int k = 0; k < 5000 && rows[i].eintr == had[i]; k++) usleep(1000);
				if (rows[i].eintr != had[i] + 1 || handled != ran + n) { rows[i].wrong++; rows[i].last = 20000 + (rows[i].eintr - had[i]) * 100 + (handled - ran - n); }
			}
		}
		printf("=");
		for (unsigned i = 0; i < N; i++) {
			if (rows[i].wrong) printf(" [%s, %ld ms: %ld wrong, the last was %d after %ld us]", rows[i].name, rows[i].ms, (long)rows[i].wrong, rows[i].last, (long)rows[i].least);
			if (line[0] == 'h' && !rows[i].interrupted && rows[i].ms > 0 && rows[i].done < 3) printf(" [%s: %ld in all this time, the longest took %ld us]", rows[i].name, (long)rows[i].done, (long)rows[i].most);
		}
		printf(" end\n"); fflush(stdout);
	}
}
`

// No blocking call feels a stop: each goes on with its own timeout, also under a
// hundred checkpoints a second, and a signal ends it once.
func TestKindsOfCalls(t *testing.T) { callsUnderCheckpoints(t) }

// Also not one of a program that does not let itself make restart_syscall(2), by which
// the kernel goes on with some of them.
func TestKindsOfCallsWithoutRestart(t *testing.T) {
	callsUnderCheckpoints(t, fmt.Sprint(unix.SYS_RESTART_SYSCALL))
}

func callsUnderCheckpoints(t *testing.T, args ...string) {
	h := newHost(t, withoutStandbys)
	box := h.create()
	h.put(box, "/root/calls", build(t, callsProgram))
	x := h.exec(box, false, append([]string{"/root/calls"}, args...)...)
	x.until("= ready")
	fine := func(x *talk, line, when string) {
		t.Helper()
		if got := x.ask(line, "="); got != " end" {
			t.Errorf("%s: %s", when, strings.ReplaceAll(got, "] [", "]\n["))
		}
	}
	var last control.Checkpoint
	storm := func(when string) {
		t.Helper()
		fine(x, "reset", when)
		n := 0
		for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); n++ {
			last = h.checkpoint(box)
		}
		fine(x, "how", fmt.Sprintf("%s, after %d checkpoints", when, n))
		stop := make(chan struct{})
		done := make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					done <- n
					return
				default:
				}
				if _, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: fmt.Sprintf("cp-%s-%d", x.id, time.Now().UnixNano())}); err != nil {
					t.Error(err)
				}
				n++
			}
		}()
		for range 20 {
			fine(x, "poke", when+", signals")
			fine(x, "timers", when+", signals of timers")
		}
		close(stop)
		t.Logf("%s: %d checkpoints, then %d beside signals", when, n, <-done)
	}
	storm("live")
	for i, f := range h.fork(box, last.ID, 2) {
		y := h.adopt(f, x.id)
		fine(y, "timers", fmt.Sprintf("fork %d", i))
		h.remove(f)
	}
	_, ss := h.rollback(box, last.ID)
	x = ss[x.id]
	fine(x, "poke", "rolled back")
	storm("rolled back")
}
