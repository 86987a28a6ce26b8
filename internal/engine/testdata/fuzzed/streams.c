#include "fuzzed.h"
#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Rarer states of what bytes and events come from. */

static char data[1 << 14];

static void put(int fd) {
	size_t n = 1 + pick(5000);
	fill(data, n);
	ssize_t k = send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	(void)k;
}

/* spliced is a pipe that holds pages of a file, of memory and of another pipe. */
static void spliced(void) {
	int p[2], q[2];
	if (pipe2(p, O_NONBLOCK) || pipe2(q, O_NONBLOCK)) die("pipe");
	int fd = openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0) die("a file to splice");
	fill(data, sizeof data);
	if (write(fd, data, sizeof data) < 0) die("write a file to splice");
	loff_t at = pick(5000);
	if (splice(fd, &at, p[1], NULL, 1 + pick(9000), SPLICE_F_NONBLOCK) < 0) die("splice");
	char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fill(page, 4096);
	struct iovec v = {page + pick(100), 1 + pick(3000)};
	if (chance(60) && vmsplice(p[1], &v, 1, SPLICE_F_NONBLOCK) < 0) die("vmsplice");
	munmap(page, 4096);
	if (chance(50)) tee(p[0], q[1], 1 + pick(5000), SPLICE_F_NONBLOCK);
	if (chance(50)) splice(p[0], NULL, q[1], NULL, 1 + pick(5000), SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
	close(fd);
	done("spliced ");
	place(p[0]), place(p[1]), place(q[0]), place(q[1]);
}

static void loopback(struct sockaddr_in *a) {
	memset(a, 0, sizeof *a);
	a->sin_family = AF_INET, a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

/* udp_pair is two UDP sockets that are each other's, and one that is nobody's. */
static void udp_pair(void) {
	struct sockaddr_in a[3];
	socklen_t len = sizeof *a;
	int s[3];
	for (int i = 0; i < 3; i++) {
		s[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		loopback(&a[i]);
		if (bind(s[i], (void *)&a[i], len) || getsockname(s[i], (void *)&a[i], &len)) die("bind a UDP socket");
	}
	for (unsigned n = pick(4); n; n--) {
		fill(data, 100);
		sendto(s[2], data, 1 + pick(100), MSG_DONTWAIT, (void *)&a[pick(3)], len);
	}
	if (connect(s[0], (void *)&a[1], len) || connect(s[1], (void *)&a[0], len)) die("connect a UDP socket");
	for (unsigned n = pick(4); n; n--) put(s[pick(2)]);
	done("udp-pair ");
	place(s[0]), place(s[1]), place(s[2]);
}

/* options that have a meaning for TCP. */
static void tcp_option(int fd) {
	int v = 1, n = 1 + pick(100);
	struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
	struct sock_fprog filter = {1, all};
	switch (pick(9)) {
	case 0: setsockopt(fd, IPPROTO_TCP, TCP_CORK, &v, sizeof v); break;
	case 1: setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n); break;
	case 2: setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &n, sizeof n); break;
	case 3: n = 3 + pick(20), setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &n, sizeof n); break;
	case 4: setsockopt(fd, IPPROTO_TCP, TCP_LINGER2, &n, sizeof n); break;
	case 5: setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); break;
	case 6: n = 1000 * n, setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &n, sizeof n); break;
	case 7: n = 500 + n, setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &n, sizeof n); break;
	case 8: setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter); break;
	}
}

/* mapped is a TCP connection of an IPv6 socket over IPv4, or one of several that listen at one port. */
static void mapped(void) {
	struct sockaddr_in6 a = {.sin6_family = AF_INET6};
	socklen_t len = sizeof a;
	int v = 1, off = 0, s = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0), u = -1;
	setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	bool several = chance(40);
	if (several) setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &v, sizeof v);
	if (s < 0 || bind(s, (void *)&a, len) || listen(s, 5) || getsockname(s, (void *)&a, &len)) die("listen");
	struct sockaddr_in to;
	loopback(&to);
	to.sin_port = a.sin6_port;
	if (several) {
		u = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
		setsockopt(u, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
		setsockopt(u, SOL_SOCKET, SO_REUSEPORT, &v, sizeof v);
		if (bind(u, (void *)&a, len)) die("bind to one port");
		if (chance(50) && listen(u, 5)) die("listen at one port");
		done("several ");
		place(u), place(s);
		return;
	}
	int c = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(c, (void *)&to, sizeof to)) die("connect");
	fcntl(c, F_SETFL, O_NONBLOCK);
	struct pollfd comes = {s, POLLIN, 0};
	while (poll(&comes, 1, -1) != 1);
	int t = accept4(s, NULL, NULL, SOCK_NONBLOCK);
	if (t < 0) die("accept");
	if (chance(50)) put(c); /* before TCP_CORK, which would hold the end of it back for 200 ms */
	if (chance(50)) put(t);
	while (chance(50)) tcp_option(chance(50) ? c : t);
	if (chance(30)) shutdown(c, SHUT_WR);
	if (chance(30)) shutdown(t, ONE_OF(SHUT_WR, SHUT_RD));
	done("mapped ");
	place(c), place(t);
	if (chance(50)) place(s);
	else close(s);
}

/* senders are datagrams of unix sockets that are not connected. */
static void senders(void) {
	int r = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX}, own = {.sun_family = AF_UNIX};
	socklen_t len = sizeof a;
	if (r < 0 || bind(r, (void *)&a, sizeof(sa_family_t)) || getsockname(r, (void *)&a, &len)) die("bind a unix socket");
	for (unsigned n = 1 + pick(3); n; n--) {
		int c = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (chance(50) && bind(c, (void *)&own, sizeof(sa_family_t))) die("bind a unix socket");
		for (unsigned m = pick(3); m; m--) {
			fill(data, 200);
			sendto(c, data, 1 + pick(200), MSG_DONTWAIT, (void *)&a, len);
		}
		fcntl(own_fd(c), F_GETFD); /* stays open: who has closed it could not send again */
	}
	done("senders ");
	place(own_fd(dup(r)));
	place(r);
}

/* fired is an epoll some of whose entries have fired and are told once. */
static void fired(void) {
	int outer = epoll_create1(0), ep = epoll_create1(EPOLL_CLOEXEC), one = eventfd(1, EFD_NONBLOCK), none = eventfd(0, EFD_NONBLOCK);
	struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = draw() << 1}, got[4];
	if (epoll_ctl(ep, EPOLL_CTL_ADD, one, &e)) die("epoll_ctl");
	if (chance(60)) epoll_wait(ep, got, 4, 0);
	e.events = ONE_OF(EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLEXCLUSIVE, EPOLLOUT | EPOLLRDNORM), e.data.u64 = draw() << 1;
	if (epoll_ctl(ep, EPOLL_CTL_ADD, none, &e)) die("epoll_ctl");
	e.events = EPOLLIN, e.data.u64 = draw() << 1;
	if (epoll_ctl(outer, EPOLL_CTL_ADD, ep, &e)) die("nest an epoll");
	done("fired ");
	if (chance(30)) close(none); /* its entry is gone with it */
	else place(none);
	place(one), place(ep), place(outer);
}

/* ended is a pidfd of a process that has ended, and perhaps was reaped. */
static void ended(void) {
	pid_t p = fork();
	if (p < 0) die("fork");
	if (!p) _exit(pick(200));
	int fd = syscall(SYS_pidfd_open, p, ONE_OF(0, O_NONBLOCK));
	if (waitpid(p, NULL, 0) != p) die("waitpid");
	done("ended ");
	place(fd);
}

/* exclusive is a terminal that nobody else may open, and whose master is told how it goes on. */
static void exclusive(void) {
	int m = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK), v = 1, n;
	if (m < 0) return;
	int zero = 0;
	ioctl(m, TIOCSPTLCK, &zero), ioctl(m, TIOCGPTN, &n);
	char path[32];
	snprintf(path, sizeof path, "/dev/pts/%d", n);
	int s = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK);
	if (s < 0) die("open a terminal");
	if (chance(50)) ioctl(s, TIOCEXCL);
	if (chance(50)) ioctl(m, TIOCPKT, &v);
	if (chance(50)) ioctl(m, TIOCSPTLCK, &v);
	if (chance(50) && write(s, "shown", 5) < 0) die("show");
	done("exclusive ");
	place(m), place(s);
}

void controlling_terminal(void) {
	int m = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK), zero = 0, n;
	if (m < 0) return;
	ioctl(m, TIOCSPTLCK, &zero), ioctl(m, TIOCGPTN, &n);
	char path[32];
	snprintf(path, sizeof path, "/dev/pts/%d", n);
	int s = open(path, O_RDWR | O_NONBLOCK);
	if (s < 0) die("open a controlling terminal");
	if (chance(50)) place(open("/dev/tty", O_RDWR | O_NONBLOCK));
	place(m);
	if (chance(70)) place(s);
	else close(s);
	done("tty ");
}

void stream_step(void) {
	static void (*const kinds[])(void) = {spliced, spliced, udp_pair, mapped, mapped, senders, fired, fired, ended, exclusive};
	kinds[pick(sizeof kinds / sizeof *kinds)]();
}
