#include "fuzzed.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>

int some_fd(void) {
	int begin = 3 + pick(40);
	for (int fd = begin; fd < begin + 60; fd++)
		if (fcntl(fd, F_GETFD) >= 0) return fd;
	return -1;
}

int place(int fd) {
	if (fd < 0) return -1;
	if (chance(25)) {
		int to = 3 + pick(60);
		if (fcntl(to, F_GETFD) < 0 && dup2(fd, to) == to && chance(50)) {
			close(fd);
			fd = to;
		}
	}
	if (chance(10)) fcntl(fd, F_DUPFD_CLOEXEC, 64 + pick(500));
	if (chance(30)) fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static char data[1 << 16];

static void lock(int fd) {
	struct flock l = {.l_type = ONE_OF(F_RDLCK, F_WRLCK), .l_whence = SEEK_SET, .l_start = pick(100), .l_len = pick(50)};
	switch (pick(4)) {
	case 0: flock(fd, ONE_OF(LOCK_SH, LOCK_EX) | LOCK_NB); break;
	case 1: fcntl(fd, F_SETLK, &l); break;
	case 2: fcntl(fd, F_OFD_SETLK, &l); break;
	case 3: fcntl(fd, F_SETLEASE, (long)ONE_OF(F_RDLCK, F_WRLCK)); break;
	}
}

static void regular(void) {
	const char *path = file_name("file");
	int flags = ONE_OF(O_RDWR, O_RDWR, O_RDONLY, O_WRONLY);
	int w = openat(dir_fd, path, O_CREAT | O_RDWR | O_EXCL | O_CLOEXEC, (mode_t)ONE_OF(0600, 0644, 0755, 0444, 0));
	if (w < 0) die("create a file");
	for (unsigned n = pick(4); n; n--) {
		size_t k = pick(sizeof data);
		fill(data, k);
		if (pwrite(w, data, k, pick(1 << 20)) < 0) die("write a file");
	}
	if (chance(20) && ftruncate(w, pick(1 << 18))) die("truncate");
	flags |= ONE_OF(0, 0, 0, O_APPEND, O_NONBLOCK, O_SYNC, O_DSYNC, O_NOATIME, O_DIRECT, O_APPEND | O_NONBLOCK);
	int fd = openat(dir_fd, path, flags);
	if (fd < 0) fd = openat(dir_fd, path, flags & ~(O_DIRECT | O_NOATIME)); /* where a file system has it not */
	if (fd < 0) die("open a file");
	if (chance(60)) close(w);
	lseek(fd, chance(20) ? lseek(fd, 0, SEEK_END) : (off_t)pick(1 << 21), SEEK_SET);
	if (chance(25)) lock(fd);
	switch (pick(5)) {
	case 0: if (fcntl(fd, F_GETLEASE) != F_WRLCK) unlinkat(dir_fd, path, 0); break; /* or it were refused */
	case 1: {
		char other[128];
		strcpy(other, file_name("renamed"));
		renameat(dir_fd, path, dir_fd, other);
		break;
	}
	case 2: {
		struct timespec t[2] = {{pick(1 << 30), pick(1000000000)}, {pick(1 << 30), pick(1000000000)}};
		utimensat(dir_fd, path, t, 0);
		break;
	}
	}
	if (chance(10)) place(dup(fd));
	done("file(%o) ", flags);
	place(fd);
}

static void directory(void) {
	const char *path = file_name("directory");
	mkdirat(dir_fd, path, 0755);
	int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY);
	if (fd < 0) die("open a directory");
	for (unsigned n = pick(20); n; n--) {
		char entry[32];
		snprintf(entry, sizeof entry, "entry%d", n);
		close(openat(fd, entry, O_CREAT | O_WRONLY, 0644));
	}
	if (chance(50)) syscall(SYS_getdents64, fd, data, 100);
	if (chance(20)) fchdir(fd);
	done("directory ");
	place(fd);
}

static void device(void) {
	static const char *const names[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"};
	done("device ");
	place(open(names[pick(5)], ONE_OF(O_RDWR, O_RDONLY, O_WRONLY) | ONE_OF(0, O_NONBLOCK)));
}

static void path_only(void) {
	const char *path = file_name("path");
	close(openat(dir_fd, path, O_CREAT | O_WRONLY, 0644));
	done("path ");
	place(openat(dir_fd, path, O_PATH));
}

static void proc_file(void) {
	/* Not the host name: poll(2) tells of it what any sandbox's becomes. */
	static const char *const names[] = {"self/status", "self/maps", "self/stat", "meminfo", "self/fd", "sys/kernel/random/poolsize", "self/limits"};
	int fd = openat(proc_fd, names[pick(7)], O_RDONLY);
	if (fd >= 0 && chance(50)) lseek(fd, pick(50), SEEK_SET);
	done("proc ");
	place(fd);
}

/* pour writes into a pipe, in parts of random sizes. */
static void pour(int fd) {
	for (unsigned n = pick(5); n; n--) {
		size_t k = 1 + pick(6000);
		fill(data, k);
		if (write(fd, data, k) < 0) break;
	}
	if (chance(10)) /* full */
		while (write(fd, data, 4096) > 0);
}

static void pipes(void) {
	int p[2];
	if (pipe2(p, O_NONBLOCK | ONE_OF(0, 0, 0, O_DIRECT))) die("pipe");
	if (chance(30)) fcntl(p[1], F_SETPIPE_SZ, 4096l << pick(6));
	pour(p[1]);
	if (chance(30)) {
		ssize_t n = read(p[0], data, 1 + pick(3000));
		(void)n;
	}
	if (chance(30)) fcntl(p[0], F_SETFL, fcntl(p[0], F_GETFL) & ~O_NONBLOCK);
	if (chance(30)) fcntl(p[1], F_SETFL, fcntl(p[1], F_GETFL) & ~O_NONBLOCK);
	if (chance(20)) close(p[1]), p[1] = -1;
	else if (chance(20)) close(p[0]), p[0] = -1;
	done("pipe ");
	place(p[0]), place(p[1]);
}

static void fifo(void) {
	const char *path = file_name("fifo");
	if (mkfifoat(dir_fd, path, 0644)) die("mkfifo");
	int a = openat(dir_fd, path, O_RDWR | O_NONBLOCK);
	if (a < 0) die("open a FIFO");
	pour(a);
	if (chance(50)) place(openat(dir_fd, path, ONE_OF(O_RDONLY, O_WRONLY) | O_NONBLOCK));
	if (chance(30)) unlinkat(dir_fd, path, 0);
	done("fifo ");
	place(a);
}

static void event(void) {
	int fd = eventfd(pick(1000), ONE_OF(0, EFD_NONBLOCK) | ONE_OF(0, EFD_SEMAPHORE));
	done("eventfd ");
	place(fd);
}

static void timer(void) {
	int fd = timerfd_create(ONE_OF(CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME), ONE_OF(0, TFD_NONBLOCK));
	if (fd < 0) die("timerfd_create");
	struct itimerspec t = {{0}, {0, 1}};
	if (chance(30)) { /* has expired */
		timerfd_settime(fd, 0, &t, NULL);
		char ready = 0;
		while (!ready) { /* until it counts: seen without taking it */
			ssize_t n = read_proc("self/fdinfo", data, 0);
			(void)n;
			char path[64];
			snprintf(path, sizeof path, "self/fdinfo/%d", fd);
			n = read_proc(path, data, 4000);
			data[n > 0 ? n : 0] = 0;
			ready = strstr(data, "ticks: 1") != NULL;
		}
	} else if (chance(80)) {
		middle(&t.it_value, 1 + pick(20));
		if (chance(50)) t.it_interval = (struct timespec){1000 + pick(1000), pick(1000000000)};
		timerfd_settime(fd, 0, &t, NULL);
	}
	done("timerfd ");
	place(fd);
}

static void signals(void) {
	sigset_t s;
	sigemptyset(&s);
	for (unsigned n = pick(6); n; n--) sigaddset(&s, 1 + pick(64));
	done("signalfd ");
	place(signalfd(-1, &s, ONE_OF(0, SFD_NONBLOCK)));
}

static void memory_file(void) {
	char label[32];
	snprintf(label, sizeof label, "m%d", pick(100));
	int fd = memfd_create(label, MFD_ALLOW_SEALING | ONE_OF(0, MFD_CLOEXEC));
	if (fd < 0) die("memfd_create");
	size_t size = pick(1 << 18);
	if (ftruncate(fd, size)) die("size of a memfd");
	for (unsigned n = pick(4); n && size; n--) {
		size_t k = pick(5000);
		fill(data, k);
		if (pwrite(fd, data, k, pick(size)) < 0) die("write a memfd");
	}
	void *m = MAP_FAILED;
	if (chance(40)) m = mmap(NULL, size ? size : 1, PROT_READ | ONE_OF(0, PROT_WRITE), ONE_OF(MAP_SHARED, MAP_PRIVATE), fd, 0);
	if (m != MAP_FAILED && chance(20)) munmap(m, 4096);
	if (chance(40)) fcntl(fd, F_ADD_SEALS, (long)(pick(32) & ~(chance(70) ? F_SEAL_WRITE : 0)));
	lseek(fd, pick(10000), SEEK_SET);
	done("memfd ");
	if (chance(70) || m == MAP_FAILED) place(fd);
	else close(fd);
}

static void watches(void) {
	if (name[1] || chance(50)) return; /* the host has few instances for all */
	int fd = inotify_init1(ONE_OF(0, IN_NONBLOCK));
	if (fd < 0) die("inotify_init");
	for (unsigned n = pick(4); n; n--) {
		const char *path = file_name("watched");
		mkdirat(dir_fd, path, 0755);
		char whole[200];
		snprintf(whole, sizeof whole, "/proc/self/fd/%d/%s", dir_fd, path);
		int wd = inotify_add_watch(fd, whole, ONE_OF(IN_CREATE, IN_DELETE | IN_CREATE, IN_MOVED_FROM, IN_MODIFY | IN_ONESHOT));
		if (wd < 0) break;
		if (chance(20)) { /* numbers with holes; the event of it is read */
			inotify_rm_watch(fd, wd);
			ssize_t k = read(fd, data, sizeof data);
			(void)k;
		} else if (chance(30)) { /* events that nobody has read */
			char inside[160];
			snprintf(inside, sizeof inside, "%s/new", path);
			if (mkdirat(dir_fd, inside, 0755)) die("make a directory that is watched");
			if (chance(50)) unlinkat(dir_fd, inside, AT_REMOVEDIR);
		}
	}
	done("inotify ");
	place(fd);
}

static void process_fd(void) {
	done("pidfd ");
	place(syscall(SYS_pidfd_open, chance(50) ? getpid() : getppid(), ONE_OF(0, O_NONBLOCK)));
}

static void terminal(void) {
	int m = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK);
	if (m < 0) return;
	int zero = 0, number;
	char path[32];
	ioctl(m, TIOCSPTLCK, &zero);
	ioctl(m, TIOCGPTN, &number);
	snprintf(path, sizeof path, "/dev/pts/%d", number);
	int s = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
	if (s < 0) die("open a terminal");
	struct termios t;
	tcgetattr(s, &t);
	if (chance(50)) cfmakeraw(&t);
	if (chance(50)) t.c_lflag &= ~ECHO;
	if (chance(30)) t.c_cc[VINTR] = 1 + pick(30), t.c_cc[VTIME] = pick(20);
	tcsetattr(s, TCSANOW, &t);
	struct winsize w = {pick(200), pick(200), pick(2000), pick(2000)};
	ioctl(m, TIOCSWINSZ, &w);
	bool closed = chance(20); /* what it showed, echoes too, would be lost: docs/limits.md */
	if (!closed && chance(50) && write(m, "typed\nin", pick(9)) < 0) die("type");
	if (!closed && chance(50) && write(s, "shown out", pick(10)) < 0) die("show");
	done("terminal ");
	place(m);
	if (closed) close(s);
	else place(s);
}

/* near_full is what may have room in a copy where it has none: docs/limits.md, unix sockets. */
static bool near_full(int fd) {
	int domain = 0, size = 0;
	socklen_t len = sizeof domain;
	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) || domain != AF_UNIX) return false;
	return !getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, &len) && size < 100000;
}

static void poll_list(void) {
	int ep = epoll_create1(ONE_OF(0, EPOLL_CLOEXEC));
	if (ep < 0) die("epoll_create");
	for (unsigned n = pick(8); n; n--) {
		int fd = some_fd();
		if (fd == ep || fd < 0) continue;
		struct epoll_event e = {.events = ONE_OF(EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP | EPOLLPRI, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET)};
		if (near_full(fd)) e.events &= ~EPOLLOUT;
		e.data.u64 = draw() << 1 | ((e.events & EPOLLET) != 0); /* its ready events are not told */
		epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
	}
	done("epoll ");
	place(ep);
}

static void netlink_or_flags(void) {
	int fd = some_fd();
	if (fd < 0) return;
	switch (pick(6)) {
	case 0: place(dup(fd)); break;
	case 1: fcntl(fd, F_SETOWN, getpid()); break;
	case 2: fcntl(fd, F_SETSIG, (long)pick(64)); break;
	case 3: fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) ^ O_NONBLOCK); break;
	case 4: fcntl(fd, F_SETFD, fcntl(fd, F_GETFD) ^ FD_CLOEXEC); break;
	case 5: {
		int type = 0, domain = AF_UNIX;
		socklen_t k = sizeof type;
		getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &k), getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &k);
		if (type != SOCK_SEQPACKET && domain == AF_UNIX && !isatty(fd)) close(fd); /* messages and an error together are refused */
	}
	}
	done("flags ");
}

void files_step(void) {
	static void (*const kinds[])(void) = {
		regular, regular, regular, directory, device, path_only, proc_file, pipes, pipes, fifo, event, timer,
		signals, memory_file, memory_file, watches, process_fd, terminal, poll_list, poll_list, netlink_or_flags, netlink_or_flags,
	};
	kinds[pick(sizeof kinds / sizeof *kinds)]();
}
