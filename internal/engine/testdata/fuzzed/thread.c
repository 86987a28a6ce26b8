#include "fuzzed.h"
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* Each thread waits in a call of another kind. The main thread asks it by what
 * that call waits for, and waits for a byte in the pipe back. */
enum { IN_READ, IN_POLL, IN_PPOLL, IN_EPOLL, IN_EPOLL_PWAIT, IN_SELECT, IN_RECV, IN_FUTEX, IN_SIGSUSPEND, IN_SIGTIMEDWAIT,
	IN_ACCEPT, IN_OPEN, IN_SEMOP, IN_LOCK_PI, IN_HANDLER, WAYS };
static const char *const ways[WAYS] = {"read", "poll", "ppoll", "epoll", "epoll_pwait", "select", "recv", "futex", "sigsuspend", "sigtimedwait",
	"accept", "open", "semop", "lock-pi", "handler"};

static struct thread {
	uint64_t rng;
	int way, tid;
	int go[2], back[2]; /* pairs of sockets: [0] is the thread's */
	int ep;          /* of epoll, or a listening socket */
	int semaphore;
	char fifo[64];
	char *alternate; /* the stack that its handler runs on */
	uint32_t word;   /* of a futex; of one that knows its owner, who is the main thread */
	bool drain;
	char *stack; /* of the library's making */
	size_t stack_size;
} threads[6];
static int count;
static pid_t owner;

/* WAKE is blocked in all threads that wait for it, but for the waiting. */
#define WAKE SIGUSR2
static volatile int woken;
static void wake(int sig) { (void)sig; woken++; }

/* HANDLED is nobody else's: see some_signal. */
#define HANDLED SIGXCPU
#define ALTERNATE (64u << 10)
static __thread struct thread *self;

/* handle waits to be asked inside of a handler. */
static void handle(int sig) {
	char c;
	(void)sig;
	while (read(self->go[0], &c, 1) != 1);
}

/* pi locks or unlocks a futex that knows its owner. */
static void pi(struct thread *t, int operation) {
	while (syscall(SYS_futex, &t->word, operation | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0))
		if (errno != EINTR && errno != EAGAIN) die("a futex with an owner");
}

/* await waits to be asked. was is what the word was before the one who asks could
 * know that this thread waits: read any later it may be what that one has written. */
static void await(struct thread *t, uint32_t was) {
	struct pollfd p = {t->go[0], POLLIN, 0};
	struct epoll_event e;
	struct timespec long_time = {100000, 0};
	sigset_t now, without;
	fd_set set;
	char c;
	pthread_sigmask(SIG_BLOCK, NULL, &now);
	without = now;
	sigdelset(&without, WAKE);
	switch (t->way) {
	case IN_READ:
		while (read(t->go[0], &c, 1) != 1);
		return;
	case IN_RECV:
		while (recv(t->go[0], &c, 1, MSG_WAITALL) != 1);
		return;
	case IN_POLL: while (poll(&p, 1, -1) != 1); break;
	case IN_PPOLL: while (ppoll(&p, 1, &long_time, &without) != 1); break;
	case IN_EPOLL: while (epoll_wait(t->ep, &e, 1, -1) != 1); break;
	case IN_EPOLL_PWAIT: while (epoll_pwait(t->ep, &e, 1, 100000000, &without) != 1); break;
	case IN_SELECT:
		do {
			FD_ZERO(&set);
			FD_SET(t->go[0], &set);
		} while (select(t->go[0] + 1, &set, NULL, NULL, NULL) != 1);
		break;
	case IN_FUTEX:
		while (__atomic_load_n(&t->word, __ATOMIC_SEQ_CST) == was)
			syscall(SYS_futex, &t->word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, was, NULL, NULL, 0x10001);
		break;
	case IN_HANDLER:
		syscall(SYS_tgkill, getpid(), gettid(), HANDLED);
		return;
	case IN_ACCEPT: {
		int fd;
		while ((fd = accept4(t->ep, NULL, NULL, SOCK_CLOEXEC)) < 0);
		close(fd);
		break;
	}
	case IN_OPEN: {
		int fd;
		while ((fd = openat(dir_fd, t->fifo, O_RDONLY | O_CLOEXEC)) < 0);
		close(fd);
		if (write(t->back[0], "", 1) != 1) die("answer of a thread");
		break;
	}
	case IN_SEMOP: while (semop(t->semaphore, &(struct sembuf){0, -1, 0}, 1)); break;
	case IN_LOCK_PI:
		while (read(t->go[0], &c, 1) != 1); /* it is locked */
		pi(t, FUTEX_LOCK_PI), pi(t, FUTEX_UNLOCK_PI);
		break;
	case IN_SIGSUSPEND:
		for (int before = woken; woken == before;) sigsuspend(&without);
		break;
	case IN_SIGTIMEDWAIT:
		sigemptyset(&without), sigaddset(&without, WAKE);
		while (sigtimedwait(&without, NULL, &long_time) != WAKE);
		break;
	}
	while (read(t->go[0], &c, 1) != 1); /* what was asked */
}

static void *run(void *arg) {
	struct thread *t = arg;
	sigset_t w;
	sigemptyset(&w), sigaddset(&w, WAKE);
	pthread_sigmask(SIG_BLOCK, &w, NULL);
	rng = t->rng; /* the starter waits */
	own_thread_steps();
	self = t;
	if (t->way == IN_HANDLER) {
		stack_t s = {.ss_sp = t->alternate, .ss_size = ALTERNATE};
		if (sigaltstack(&s, NULL)) die("sigaltstack");
	}
	t->rng = rng;
	t->tid = gettid();
	pthread_attr_t attr;
	void *stack;
	if (pthread_getattr_np(pthread_self(), &attr) || pthread_attr_getstack(&attr, &stack, &t->stack_size)) die("stack of a thread");
	t->stack = stack;
	for (;;) {
		uint32_t was = __atomic_load_n(&t->word, __ATOMIC_SEQ_CST);
		if (write(t->back[0], "", 1) != 1) die("answer of a thread");
		await(t, was);
		tell_thread(t->drain); /* the main thread waits: the text is ours */
	}
	return NULL;
}

static void answered(struct thread *t) {
	char c;
	while (read(t->back[1], &c, 1) != 1)
		if (errno != EINTR) die("a thread ended");
	if (t->way != IN_LOCK_PI) return;
	pi(t, FUTEX_LOCK_PI);
	if (write(t->go[1], "", 1) != 1) die("tell a thread");
	for (int unread = 1; !ioctl(t->go[0], FIONREAD, &unread) && unread;) sched_yield(); /* or it were told as unread */
}

/* prepare makes what a thread will wait for. */
static void prepare(struct thread *t) {
	switch (t->way) {
	case IN_EPOLL: case IN_EPOLL_PWAIT: {
		t->ep = own_fd(epoll_create1(EPOLL_CLOEXEC));
		struct epoll_event e = {.events = EPOLLIN, .data.u64 = 1};
		if (epoll_ctl(t->ep, EPOLL_CTL_ADD, t->go[0], &e)) die("epoll_ctl");
		break;
	}
	case IN_ACCEPT: {
		struct sockaddr_un a = {.sun_family = AF_UNIX};
		t->ep = own_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
		if (bind(t->ep, (void *)&a, sizeof(sa_family_t)) || listen(t->ep, 1)) die("listen");
		break;
	}
	case IN_OPEN:
		snprintf(t->fifo, sizeof t->fifo, "%s", file_name("wait"));
		if (mkfifoat(dir_fd, t->fifo, 0666) || fchmodat(dir_fd, t->fifo, 0666, 0)) die("mkfifo");
		break;
	case IN_SEMOP:
		if ((t->semaphore = semget(IPC_PRIVATE, 1, 0666)) < 0) die("semget");
		break;
	case IN_HANDLER: {
		struct sigaction a = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
		sigaction(HANDLED, &a, NULL);
		t->alternate = mmap(NULL, ALTERNATE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (t->alternate == MAP_FAILED) die("a stack");
	}
	}
}

/* let_open has a thread go on that waits in open(2). Nobody writes any more when that
 * waits for the next time, or it would not wait. */
static void let_open(struct thread *t) {
	char c;
	int fd = openat(dir_fd, t->fifo, O_RDWR | O_CLOEXEC);
	if (fd < 0) die("open a FIFO that a thread opens");
	while (read(t->back[1], &c, 1) != 1)
		if (errno != EINTR) die("a thread ended");
	close(fd);
}

/* ask has a thread go on that waits. It returns what is to be closed when that has. */
static int ask(struct thread *t) {
	if (t->way == IN_OPEN) let_open(t);
	__atomic_add_fetch(&t->word, t->way == IN_FUTEX, __ATOMIC_SEQ_CST);
	if (write(t->go[1], "", 1) != 1) die("ask a thread");
	switch (t->way) {
	case IN_FUTEX: syscall(SYS_futex, &t->word, FUTEX_WAKE_PRIVATE, 1); break;
	case IN_SIGSUSPEND: case IN_SIGTIMEDWAIT: syscall(SYS_tgkill, getpid(), t->tid, WAKE); break;
	case IN_ACCEPT: {
		struct sockaddr_un a;
		socklen_t len = sizeof a;
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (getsockname(t->ep, (void *)&a, &len) || connect(fd, (void *)&a, len)) die("connect to a thread");
		return fd;
	}
	case IN_SEMOP:
		if (semop(t->semaphore, &(struct sembuf){0, 1, 0}, 1)) die("semop");
		break;
	case IN_LOCK_PI: pi(t, FUTEX_UNLOCK_PI); break;
	}
	return -1;
}

void start_thread(void) {
	if (owner != getpid()) owner = getpid(), count = 0; /* a child has none */
	if (count == sizeof threads / sizeof *threads) return;
	struct thread *t = &threads[count];
	memset(t, 0, sizeof *t);
	t->way = pick(WAYS);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, t->go) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, t->back)) die("socketpair");
	for (int i = 0; i < 2; i++) t->go[i] = own_fd(t->go[i]), t->back[i] = own_fd(t->back[i]);
	prepare(t);
	struct sigaction a = {.sa_handler = wake};
	sigaction(WAKE, &a, NULL);
	t->rng = draw();
	uint64_t mine = rng;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 << 10);
	pthread_attr_setguardsize(&attr, 4096 * pick(4));
	pthread_t id;
	if ((errno = pthread_create(&id, &attr, run, t))) die("pthread_create");
	answered(t);
	rng = mine;
	count++;
	done("thread(%s) ", ways[t->way]);
}

bool is_stack(unsigned long begin, unsigned long end) {
	for (int i = 0; has_threads() && i < count; i++)
		if ((threads[i].alternate && begin < (unsigned long)threads[i].alternate + ALTERNATE && (unsigned long)threads[i].alternate < end) ||
			(begin < (unsigned long)threads[i].stack + threads[i].stack_size && (unsigned long)threads[i].stack < end)) return true;
	return false;
}

bool has_threads(void) { return owner == getpid() && count > 0; }

void tell_threads(bool drain) {
	if (owner != getpid()) return;
	for (int i = 0; i < count; i++) {
		struct thread *t = &threads[i];
		say("thread %d in %s\n", t->tid, ways[t->way]);
		t->drain = drain;
		int fd = ask(t);
		answered(t);
		if (fd >= 0) close(fd);
	}
}
