#include "fuzzed.h"
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>

static char data[1 << 20] __attribute__((aligned(4096))); /* for O_DIRECT */

static char link_of[256];

/* Objects that have only a number are named after the first descriptor. */
static struct { unsigned long ino; int fd; } seen[512];
static int known;

static void set_link(int fd) {
	char path[32];
	snprintf(path, sizeof path, "self/fd/%d", fd);
	ssize_t n = readlinkat(proc_fd, path, link_of, sizeof link_of - 1);
	link_of[n > 0 ? n : 0] = 0;
	/* What has no name any more has another one afterwards, or the one that is left: docs/limits.md. */
	if (strstr(link_of, "/linked-")) strcpy(link_of, "linked");
	else if (n > 10 && !strcmp(link_of + n - 10, " (deleted)") && strncmp(link_of, "/memfd:", 7)) strcpy(link_of, "deleted");
	unsigned long ino;
	if (sscanf(link_of, "pipe:[%lu]", &ino) != 1 && sscanf(link_of, "socket:[%lu]", &ino) != 1) return;
	char *bracket = strchr(link_of, '[');
	for (int i = 0; i < known; i++)
		if (seen[i].ino == ino) {
			sprintf(bracket, "as %d", seen[i].fd);
			return;
		}
	if (known < 512) seen[known].ino = ino, seen[known++].fd = fd;
	*bracket = 0;
}

/* The lines of an epoll and of inotify are in no order. */
static struct { int fd; unsigned events; unsigned long long data; } watched[64];

static int by_fd(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void fdinfo(int fd) {
	size_t watches = 0;
	char path[32];
	snprintf(path, sizeof path, "self/fdinfo/%d", fd);
	ssize_t n = read_proc(path, data, sizeof data - 1);
	data[n > 0 ? n : 0] = 0;
	char *rest = NULL;
	for (char *line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		/* Numbers of mounts, inodes and objects, times that pass. */
		static const char *const moving[] = {"mnt_id:", "ino:", "eventfd-id:", "it_value:", "scm_fds:", "tty-index:"};
		bool skip = false;
		for (size_t i = 0; i < sizeof moving / sizeof *moving; i++) skip |= !strncmp(line, moving[i], strlen(moving[i]));
		if (skip) continue;
		unsigned status;
		/* How it was opened shows no more where it is opened otherwise: docs/limits.md. */
		if (sscanf(line, "flags: %o", &status) == 1) {
			say(" flags %o,", status & ~(O_TMPFILE | O_DIRECTORY | O_NOFOLLOW));
			continue;
		}
		int tfd;
		unsigned events, mask;
		unsigned long long value;
		int wd;
		if (sscanf(line, "tfd: %d events: %x data: %llx", &tfd, &events, &value) == 3) {
			if (watches < 64) watched[watches].fd = tfd, watched[watches].events = events, watched[watches++].data = value;
		}
		else if (sscanf(line, "inotify wd:%x ino:%*x sdev:%*x mask:%x", &wd, &mask) == 2) {
			if (watches < 64) watched[watches].fd = wd, watched[watches].events = mask, watched[watches++].data = 0;
		}
		else if (!strncmp(line, "lock:", 5)) {
			char kind[16], type[16], mode[16], from[32], to[32];
			int pid;
			if (sscanf(line, "lock: %*d: %15s %15s %15s %d %*s %31s %31s", kind, type, mode, &pid, from, to) == 6) say(" lock %s %s %s %d %s %s,", kind, type, mode, strcmp(kind, "LEASE") ? pid : 0, from, to);
			else say(" %s,", line);
		} else say(" %s,", line);
	}
	qsort(watched, watches, sizeof *watched, by_fd);
	for (size_t i = 0; i < watches; i++) say(" watch %d %x %llx,", watched[i].fd, watched[i].events, watched[i].data);
}

static void stat_of(int fd) {
	struct stat s;
	if (fstat(fd, &s)) return;
	say(" mode %o uid %d gid %d", s.st_mode, s.st_uid, s.st_gid);
	if (S_ISREG(s.st_mode)) say(" links %ld size %ld mtime %ld.%09ld", (long)s.st_nlink, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
	else if (S_ISCHR(s.st_mode)) say(" rdev %lx", s.st_rdev);
}

/* Not through another opening: closing that would give up locks, and opening it
 * break a lease. */
static void whole(int fd) {
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) return;
	uint64_t h = HASH_EMPTY;
	off_t at = 0;
	for (ssize_t n; (n = pread(fd, data, sizeof data, at)) > 0; at += n) h = hash(h, data, n);
	say(" content %lx", h);
}

static void pipe_of(int fd) {
	int bytes = -1, scratch[2];
	ioctl(fd, FIONREAD, &bytes);
	say(" bytes %d room %d", bytes, fcntl(fd, F_GETPIPE_SZ));
	if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY || bytes <= 0) return;
	if (pipe2(scratch, O_CLOEXEC | O_NONBLOCK)) die("scratch pipe");
	fcntl(scratch[1], F_SETPIPE_SZ, fcntl(fd, F_GETPIPE_SZ)); /* no more: what all pipes of a user may have is limited */
	ssize_t n = tee(fd, scratch[1], 1 << 20, SPLICE_F_NONBLOCK);
	if (n > 0) n = read(scratch[0], data, sizeof data);
	say(" content %zd %lx", n, n > 0 ? hash(HASH_EMPTY, data, n) : 0);
	close(scratch[0]), close(scratch[1]);
}

static void address(const char *what, const struct sockaddr_storage *a, socklen_t len) {
	say(" %s", what);
	if (len > sizeof *a) len = sizeof *a;
	for (socklen_t i = 0; i < len; i++) {
		unsigned char c = ((const char *)a)[i];
		c > ' ' && c < 127 ? say("%c", c) : say("\\%x", c);
	}
}

/* options that are numbers; level, name. */
static const int numbers[][2] = {
	{SOL_SOCKET, SO_TYPE}, {SOL_SOCKET, SO_DOMAIN}, {SOL_SOCKET, SO_PROTOCOL}, {SOL_SOCKET, SO_SNDBUF}, {SOL_SOCKET, SO_RCVBUF}, {SOL_SOCKET, SO_PASSCRED},
	{SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_REUSEADDR}, {SOL_SOCKET, SO_TIMESTAMP}, {SOL_SOCKET, SO_PRIORITY}, {SOL_SOCKET, SO_RCVLOWAT}, {SOL_SOCKET, SO_OOBINLINE},
	{SOL_SOCKET, SO_ACCEPTCONN}, {SOL_SOCKET, SO_BROADCAST}, {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK}, {IPPROTO_TCP, TCP_KEEPCNT}, {IPPROTO_TCP, TCP_KEEPINTVL}, {IPPROTO_TCP, TCP_SYNCNT},
	{IPPROTO_TCP, TCP_LINGER2}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT}, {SOL_SOCKET, SO_REUSEPORT}, {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_USER_TIMEOUT},
	{IPPROTO_IP, IP_TOS}, {IPPROTO_IP, IP_TTL}, {IPPROTO_IPV6, IPV6_RECVPKTINFO}, {IPPROTO_IPV6, IPV6_V6ONLY},
};

static void socket_of(int fd) {
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	int bytes = -1, domain = 0, type = 0, v;
	socklen_t four = sizeof(int);
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &four), getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &four);
	memset(&a, 0, sizeof a);
	if (!getsockname(fd, (void *)&a, &len)) address("name ", &a, domain == AF_NETLINK ? 4 : len);
	len = sizeof a;
	memset(&a, 0, sizeof a);
	if (!getpeername(fd, (void *)&a, &len)) address("peer ", &a, domain == AF_NETLINK ? 4 : len);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		four = sizeof v;
		v = 0;
		if (domain == AF_UNIX && numbers[i][0] != SOL_SOCKET) continue;
		if (!getsockopt(fd, numbers[i][0], numbers[i][1], &v, &four)) say(" %d/%d=%d", numbers[i][0], numbers[i][1], v);
	}
	struct timeval t[2];
	struct linger l = {0};
	socklen_t k = sizeof *t;
	getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, t, &k), getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, t + 1, &k);
	k = sizeof l;
	getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &k);
	say(" timeouts %ld.%06ld %ld.%06ld linger %d %d", t[0].tv_sec, t[0].tv_usec, t[1].tv_sec, t[1].tv_usec, l.l_onoff, l.l_linger);
	struct ucred c = {0};
	k = sizeof c;
	if (domain == AF_UNIX && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &k)) say(" peercred %d %d", c.uid, c.gid); /* its number may be the holder's: docs/limits.md */
	if (domain != AF_NETLINK && !ioctl(fd, FIONREAD, &bytes)) say(" bytes %d", bytes);
	if (domain == AF_INET || domain == AF_INET6)
		if (type == SOCK_STREAM) {
			struct tcp_info info = {0};
			k = sizeof info;
			getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &k);
			/* The last packets of a connection come in their own time: of each pair of
			 * states the second is told. */
			int state = info.tcpi_state == TCP_FIN_WAIT1 ? TCP_FIN_WAIT2 : info.tcpi_state;
			if (state == TCP_LAST_ACK || state == TCP_CLOSING || state == TCP_TIME_WAIT) state = TCP_CLOSE;
			say(" state %d", state);
		}
	if (bytes <= 0) return; /* looking would take an error that waits */
	ssize_t n = recv(fd, data, sizeof data, MSG_PEEK | MSG_DONTWAIT);
	if (n >= 0) say(" unread %zd %lx", n, hash(HASH_EMPTY, data, n));
	else say(" unread %s", strerror(errno));
}

static void terminal_of(int fd) {
	struct termios t;
	struct winsize w;
	if (ioctl(fd, TCGETS, &t)) return;
	ioctl(fd, TIOCGWINSZ, &w);
	int exclusive = -1, packet = -1, locked = -1;
	ioctl(fd, TIOCGEXCL, &exclusive), ioctl(fd, TIOCGPKT, &packet), ioctl(fd, TIOCGPTLCK, &locked);
	say(" exclusive %d packet %d locked %d", exclusive, packet, locked);
	say(" modes %x %x %x %x control %lx window %d %d %d %d", t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag, hash(HASH_EMPTY, t.c_cc, 19), w.ws_row, w.ws_col, w.ws_xpixel, w.ws_ypixel);
}

static int fds[2048];

static bool is_own(int fd) { return fd < 3 || (fd >= FIRST_OWN_FD && fd < FIRST_OWN_FD + 200); }

static int all(void) {
	int n = list("self/fd", fds, 2048);
	if (n < 0) die("list descriptors");
	known = 0;
	return n;
}

static void tell_one(int fd) {
	struct stat s;
	if (fd < 3) return; /* the session's */
	set_link(fd);
	say("fd %d %s close %d status %o owner %d signal %d seals %d lease %d", fd, link_of, fcntl(fd, F_GETFD), fcntl(fd, F_GETFL) & ~(O_TMPFILE | O_DIRECTORY | O_NOFOLLOW), fcntl(fd, F_GETOWN), fcntl(fd, F_GETSIG),
		fcntl(fd, F_GET_SEALS), fcntl(fd, F_GETLEASE));
	fdinfo(fd);
	bool proc = !strncmp(link_of, "/proc", 5), queue = is_queue(fd);
	if (queue) tell_queue(fd);
	else if (!proc) stat_of(fd);
	bool path_only = fcntl(fd, F_GETFL) & O_PATH;
	if (!fstat(fd, &s) && !path_only) {
		if (S_ISREG(s.st_mode) && !proc) whole(fd);
		else if (S_ISFIFO(s.st_mode)) pipe_of(fd);
		else if (S_ISSOCK(s.st_mode)) socket_of(fd);
		else if (S_ISCHR(s.st_mode)) terminal_of(fd);
	}
	say("\n");
}

void tell_descriptors(void) {
	for (int i = 0, n = all(); i < n; i++) tell_one(fds[i]);
}

/* received tells what came with a message, and closes it. */
static void received(struct msghdr *m) {
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
			struct ucred u;
			memcpy(&u, CMSG_DATA(c), sizeof u);
			say(" from %d %d %d", u.pid, u.uid, u.gid);
		}
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
		for (size_t k = 0; k < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); k++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + k * sizeof fd, sizeof fd);
			set_link(fd);
			char *number = strpbrk(link_of, "[");
			if (number) *number = 0;
			if (!strncmp(link_of, "pipe:", 5) || !strncmp(link_of, "socket:", 7)) *strchr(link_of, ':') = 0; /* their numbering is by chance */
			say(" passed %s %o", link_of, fcntl(fd, F_GETFL) & ~(O_TMPFILE | O_DIRECTORY | O_NOFOLLOW));
			close(fd);
		}
	}
}

static void messages(int fd, int type) {
	union { struct cmsghdr h; char space[4096]; } control;
	struct sockaddr_storage a;
	uint64_t h = HASH_EMPTY;
	size_t total = 0;
	for (int i = 0; i < 1000; i++) {
		struct iovec v = {data, sizeof data};
		struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
		memset(&a, 0, sizeof a);
		ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n < 0 || (n == 0 && type != SOCK_DGRAM)) {
			say(" then %s", n < 0 ? strerror(errno) : "the end");
			break;
		}
		h = hash(h, data, n), total += n;
		if (type != SOCK_STREAM) {
			say(" message %zd %lx", n, h);
			if (m.msg_namelen) address("of ", &a, m.msg_namelen);
		}
		received(&m);
	}
	say(" in all %zu %lx", total, h);
}

/* rest_of tells what a connection has received, and whether it ends there. */
static uint64_t rest_of(int fd) {
	uint64_t h = HASH_EMPTY;
	ssize_t n;
	while ((n = recv(fd, data, sizeof data, MSG_DONTWAIT)) > 0) h = hash(h, data, n);
	int error = n < 0 ? errno : 0;
	return hash(h, &error, sizeof error);
}

static void drain_socket(int fd) {
	int listening = 0, type = 0, domain = 0;
	socklen_t k = sizeof listening;
	getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &k), getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &k), getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &k);
	if (domain == AF_NETLINK) return;
	if (!listening) {
		messages(fd, type);
		if (domain != AF_UNIX || type != SOCK_STREAM) return; /* when it arrives is not certain; a name may be made for it */
		ssize_t n = send(fd, "sent", 4, MSG_DONTWAIT | MSG_NOSIGNAL);
		say(" send %zd %s", n, n < 0 ? strerror(errno) : "");
		return;
	}
	struct sockaddr_storage a;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	int count = 0;
	uint64_t all = 0;
	for (int c;; count++) {
		socklen_t len = sizeof a;
		memset(&a, 0, sizeof a);
		if ((c = accept4(fd, (void *)&a, &len, SOCK_CLOEXEC)) < 0) break;
		if (domain == AF_UNIX) {
			address("accepted ", &a, len);
			messages(c, type);
		} else all ^= rest_of(c); /* their order is not kept exactly: docs/limits.md */
		close(c);
	}
	say(" accepted %d with %lx", count, all);
	say(" then %s", strerror(errno));
}

static int by_data(const void *a, const void *b) {
	uint64_t x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;
	return x < y ? -1 : x > y;
}

static void drain_epoll(int fd) {
	struct epoll_event e[64];
	int n = epoll_wait(fd, e, 64, 0);
	if (n > 0) qsort(e, n, sizeof *e, by_data);
	say("ready in %d:", fd);
	for (int i = 0; i < n; i++)
		if (!(e[i].data.u64 & 1)) say(" %lx %x", e[i].data.u64, e[i].events); /* an edge may come again */
	say("\n");
}

static void drain_one(int fd) {
	struct stat s;
	set_link(fd);
	int flags = fcntl(fd, F_GETFL);
	if (is_own(fd) || flags & O_PATH || fstat(fd, &s)) return;
	say("drain %d %s:", fd, link_of);
	if (is_queue(fd)) {
		drain_queue(fd);
		say("\n");
		return;
	}
	if (S_ISSOCK(s.st_mode)) drain_socket(fd);
	else if (S_ISREG(s.st_mode) && !strncmp(link_of, "/proc", 5)) ;
	else if (S_ISDIR(s.st_mode)) ; /* the order is another one from disk: docs/limits.md */
	else if (S_ISREG(s.st_mode)) {
		/* The position moves: who shares the description sees it. */
		off_t at = lseek(fd, 1, SEEK_CUR);
		ssize_t n = write(fd, "w", 1);
		say(" at %ld, write %zd %s", at, n, n < 0 ? strerror(errno) : "");
		n = read(fd, data, 100);
		fstat(fd, &s);
		say(" read %zd %lx size %ld", n, n > 0 ? hash(HASH_EMPTY, data, n) : 0, s.st_size);
	} else if (S_ISFIFO(s.st_mode) || !strncmp(link_of, "anon_inode:", 11) || strstr(link_of, "/pts/") || strstr(link_of, "ptmx")) {
		uint64_t h = HASH_EMPTY;
		size_t total = 0;
		ssize_t n = -1;
		fcntl(fd, F_SETFL, flags | O_NONBLOCK);
		if (strstr(link_of, "signalfd")) { /* the signals themselves are told by the threads */
			say("\n");
			return;
		}
		for (int i = 0; i < 64 && (n = read(fd, data, sizeof data)) > 0; i++) {
			h = hash(h, data, n), total += n;
			if (strstr(link_of, "eventfd") || strstr(link_of, "timerfd")) {
				say(" value %ld", *(long *)data);
				break;
			}
		}
		say(" read %zu %lx then %s", total, h, n < 0 ? strerror(errno) : n ? "more" : "the end");
		/* A page of which the beginning was read may have room again: docs/limits.md. */
		int left = 0;
		if (S_ISFIFO(s.st_mode) && !ioctl(fd, FIONREAD, &left) && (left == 0 || left >= 4096)) n = write(fd, "w", 1), say(" write %zd %s", n, n < 0 ? strerror(errno) : "");
	}
	say("\n");
}

void drain_descriptors(void) {
	signal(SIGPIPE, SIG_IGN);
	signal(SIGTTOU, SIG_IGN), signal(SIGTTIN, SIG_IGN);
	int n = all();
	for (int i = 0; i < n; i++) {
		set_link(fds[i]);
		if (!is_own(fds[i]) && strstr(link_of, "[eventpoll]")) drain_epoll(fds[i]);
	}
	for (int i = 0; i < n; i++) drain_one(fds[i]);
}
