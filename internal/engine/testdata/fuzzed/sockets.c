#include "fuzzed.h"
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>

static char data[1 << 14];

static void option(int fd) {
	int v = pick(2), domain = 0, type = 0;
	socklen_t k = sizeof domain;
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &k), getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &k);
	struct timeval t = {pick(1000), pick(1000000)};
	struct linger l = {pick(2), pick(100)};
	/* The rest has no meaning, and is not kept. */
	switch (domain == AF_UNIX ? ONE_OF(0, 1, 2, 3, 4, 7, 10) : type == SOCK_DGRAM ? ONE_OF(0, 1, 2, 3, 6, 7, 9) : pick(12)) {
	case 0: v = 4096 + pick(100000); setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &v, sizeof v); break;
	case 1: v = 4096 + pick(100000); setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, sizeof v); break;
	case 2: setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); break;
	case 3: setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t); break;
	case 4: setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &v, sizeof v); break;
	case 5: setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof v); break;
	case 6: setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &v, sizeof v); break;
	case 7: if (domain == AF_UNIX || type == SOCK_DGRAM) setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &v, sizeof v); break;
	case 8: if (type == SOCK_STREAM) setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l); break;
	case 9: v = pick(7); setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &v, sizeof v); break;
	case 10: v = 1 + pick(1000); setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v); break;
	case 11: setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &v, sizeof v); break;
	}
}

static void options(int fd) {
	while (chance(40)) option(fd);
}

/* may_pass leaves out what may not be on its way at a checkpoint. */
static bool may_pass(int fd) {
	char path[32], link[256];
	snprintf(path, sizeof path, "self/fd/%d", fd);
	ssize_t n = readlinkat(proc_fd, path, link, sizeof link - 1);
	link[n > 0 ? n : 0] = 0;
	return strncmp(link, "/proc", 5) && strcmp(link, "/dev/tty") && !strstr(link, "inotify") && !strstr(link, "pidfd") && !strstr(link, "eventpoll");
}

/* How descriptors may pass on a connection. */
enum passing { NONE, PASSES, HELD /* what was passed stays open here */ };

/* send_some queues messages, some with descriptors. */
static void send_some(int fd, enum passing pass) {
	for (unsigned n = pick(4); n; n--) {
		size_t k = 1 + pick(3000);
		fill(data, k);
		struct iovec v = {data, k};
		union { struct cmsghdr h; char space[CMSG_SPACE(3 * sizeof(int))]; } control;
		struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
		if (pass && chance(30)) {
			int fds[3], count = 0;
			for (unsigned i = 1 + pick(3); i; i--) {
				int f = some_fd();
				if (f < 0 || !may_pass(f)) continue;
				if (pass == HELD && fcntl(f, F_DUPFD_CLOEXEC, FIRST_OWN_FD) < 0) continue;
				fds[count++] = f;
			}
			if (count) {
				m.msg_control = &control;
				m.msg_controllen = CMSG_SPACE(count * sizeof(int));
				memset(&control, 0, sizeof control);
				struct cmsghdr *c = CMSG_FIRSTHDR(&m);
				c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(count * sizeof(int));
				memcpy(CMSG_DATA(c), fds, count * sizeof(int));
			}
		}
		sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}

/* comes waits for what another end has done: it comes late when the kernel puts the
 * interrupts of loopback off. */
static void comes(int fd, short events) {
	struct pollfd p = {fd, events, 0};
	while (poll(&p, 1, -1) != 1);
}

/* arrives waits until the other end has what was sent to it, or takes no more: what
 * does not go into a small window at once is sent after 200 ms. */
static void arrives(int fd) {
	struct tcp_info i;
	socklen_t k = sizeof i;
	do {
		memset(&i, 0, sizeof i);
		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &k)) die("look at a connection");
		sched_yield();
	} while (i.tcpi_unacked || (i.tcpi_notsent_bytes && i.tcpi_snd_wnd));
}

/* early is what a client does before it is accepted. */
static void early(int c, enum passing pass) {
	if (chance(50)) send_some(c, pass);
	if (pass == NONE) arrives(c); /* of TCP */
	switch (pick(5)) {
	case 0: shutdown(c, SHUT_WR); break;
	case 1: close(c); return;
	}
	place(c);
}

static void pair(void) {
	int s[2];
	int type = ONE_OF(SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET);
	if (socketpair(AF_UNIX, type | ONE_OF(0, SOCK_NONBLOCK), 0, s)) die("socketpair");
	options(s[0]), options(s[1]);
	send_some(s[0], PASSES), send_some(s[1], PASSES);
	if (chance(25)) shutdown(s[0], ONE_OF(SHUT_RD, SHUT_WR, SHUT_RDWR));
	if (chance(20) && type == SOCK_STREAM) close(s[1]), s[1] = -1;
	done("pair(%d) ", type);
	place(s[0]), place(s[1]);
}

/* a name for a unix socket: of a file, abstract, or chosen by the kernel. */
static socklen_t unix_name(struct sockaddr_un *a) {
	memset(a, 0, sizeof *a);
	a->sun_family = AF_UNIX;
	switch (pick(3)) {
	case 0: return sizeof(sa_family_t);
	case 1: return offsetof(struct sockaddr_un, sun_path) + 1 + snprintf(a->sun_path + 1, 100, "%d-%s", getpid(), file_name("abstract"));
	}
	snprintf(a->sun_path, sizeof a->sun_path, "%s/%s", dir_path, file_name("socket"));
	return sizeof *a;
}

static void named(void) {
	int type = ONE_OF(SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET);
	int s = socket(AF_UNIX, type | SOCK_NONBLOCK, 0);
	struct sockaddr_un a;
	socklen_t len = unix_name(&a);
	if (s < 0 || bind(s, (void *)&a, len)) die("bind a unix socket");
	options(s);
	struct sockaddr_un bound = a;
	if (len == sizeof(sa_family_t)) {
		len = sizeof bound;
		getsockname(s, (void *)&bound, &len);
	}
	done("named(%d) ", type);
	if (type == SOCK_DGRAM) {
		for (unsigned n = pick(3); n; n--) {
			int c = socket(AF_UNIX, type | SOCK_NONBLOCK, 0);
			if (chance(50)) {
				struct sockaddr_un own;
				bind(c, (void *)&own, unix_name(&own));
			}
			if (!connect(c, (void *)&bound, len)) send_some(c, PASSES);
			place(c);
		}
		place(s);
		return;
	}
	if (listen(s, pick(5))) die("listen");
	for (unsigned n = pick(4); n; n--) {
		int c = socket(AF_UNIX, type | SOCK_NONBLOCK, 0);
		options(c);
		if (connect(c, (void *)&bound, len)) {
			close(c);
			continue;
		}
		early(c, HELD);
	}
	for (unsigned n = pick(4); n; n--) {
		int c = accept4(s, NULL, NULL, ONE_OF(0, SOCK_NONBLOCK));
		if (c < 0) break;
		send_some(c, PASSES);
		if (chance(20)) shutdown(c, ONE_OF(SHUT_RD, SHUT_WR, SHUT_RDWR));
		place(c);
	}
	place(s);
}

/* internet gives an address of the loopback interface, or any. */
static socklen_t internet(struct sockaddr_storage *a, int family, bool any) {
	memset(a, 0, sizeof *a);
	a->ss_family = family;
	if (family == AF_INET) {
		((struct sockaddr_in *)a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		return sizeof(struct sockaddr_in);
	}
	if (!any || chance(60)) ((struct sockaddr_in6 *)a)->sin6_addr = in6addr_loopback;
	return sizeof(struct sockaddr_in6);
}

static void internet_option(int fd, int family, int type) {
	int v = pick(2);
	switch (pick(7)) {
	case 6: if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v, sizeof v); break; /* too late for some */
	case 0: if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, sizeof v); break;
	case 1: v = 1 + pick(1000); if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, sizeof v); break;
	case 2: v = 1 + pick(60000); if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &v, sizeof v); break;
	case 3: v = 1 + pick(255); if (family == AF_INET) setsockopt(fd, IPPROTO_IP, IP_TTL, &v, sizeof v); break;
	case 4: if (type == SOCK_DGRAM) setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &v, sizeof v); break;
	case 5: if (family == AF_INET6 && type == SOCK_DGRAM) setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &v, sizeof v); break;
	}
}

/* bind_some gives some of those that will connect an address before. */
static void bind_some(int fd, int family) {
	struct sockaddr_storage own;
	socklen_t len = internet(&own, family, true);
	if (chance(30) && bind(fd, (void *)&own, len)) die("bind");
}

/* ended makes a connection that is no more, or half so, of two sockets. */
static void ended(int c, int t) {
	send_some(c, NONE);
	arrives(c);
	switch (pick(3)) {
	case 0: close(c); break;
	case 1: close(c), shutdown(t, SHUT_WR); break;
	case 2: { /* reset, and told of it: docs/limits.md has what becomes of one that was not */
		struct linger l = {1, 0};
		int error;
		socklen_t k = sizeof error;
		setsockopt(c, SOL_SOCKET, SO_LINGER, &l, sizeof l);
		close(c);
		comes(t, POLLERR);
		getsockopt(t, SOL_SOCKET, SO_ERROR, &error, &k);
	}
	}
	place(t);
}

static void tcp(void) {
	int family = ONE_OF(AF_INET, AF_INET6);
	struct sockaddr_storage a;
	socklen_t len = internet(&a, family, true);
	int s = socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	options(s), internet_option(s, family, SOCK_STREAM);
	if (s < 0 || bind(s, (void *)&a, len)) die("bind a TCP socket");
	done("tcp ");
	if (chance(20)) {
		place(s);
		return;
	}
	if (listen(s, 2 + pick(8))) die("listen");
	len = sizeof a;
	getsockname(s, (void *)&a, &len);
	unsigned waiting = pick(3); /* the last ones are not accepted */
	for (unsigned n = waiting + pick(3); n; n--) {
		int c = socket(family, SOCK_STREAM, 0);
		options(c), internet_option(c, family, SOCK_STREAM);
		bind_some(c, family);
		if (connect(c, (void *)&a, len)) die("connect");
		fcntl(c, F_SETFL, O_NONBLOCK);
		if (n > waiting) {
			comes(s, POLLIN);
			int t = accept4(s, NULL, NULL, SOCK_NONBLOCK);
			if (t >= 0 && chance(25)) {
				ended(c, t);
				continue;
			}
			if (t >= 0) {
				options(t), internet_option(t, family, SOCK_STREAM);
				send_some(c, NONE), send_some(t, NONE);
				if (chance(20)) shutdown(t, SHUT_WR);
				if (chance(20)) shutdown(c, SHUT_WR);
				arrives(c), arrives(t);
				place(t);
			}
			place(c);
		} else early(c, NONE);
	}
	place(s); /* closed, it would reset those that wait: docs/limits.md */
}

static void udp(void) {
	int family = ONE_OF(AF_INET, AF_INET6);
	struct sockaddr_storage a;
	socklen_t len = internet(&a, family, true);
	int s = socket(family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	options(s), internet_option(s, family, SOCK_DGRAM);
	if (s < 0 || bind(s, (void *)&a, len)) die("bind a UDP socket");
	len = sizeof a;
	getsockname(s, (void *)&a, &len);
	for (unsigned n = pick(3); n; n--) {
		int c = socket(family, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		internet_option(c, family, SOCK_DGRAM);
		bind_some(c, family);
		if (!connect(c, (void *)&a, len)) send_some(c, NONE);
		place(c);
	}
	done("udp ");
	place(s);
}

static void plain(void) {
	done("plain ");
	switch (pick(3)) {
	case 0: place(socket(AF_UNIX, ONE_OF(SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET), 0)); break;
	case 1: place(socket(ONE_OF(AF_INET, AF_INET6), ONE_OF(SOCK_STREAM, SOCK_DGRAM), 0)); break;
	case 2: {
		int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
		struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_groups = pick(4)};
		if (chance(50)) bind(fd, (void *)&a, sizeof a);
		place(fd);
	}
	}
}

void socket_step(void) {
	static void (*const kinds[])(void) = {pair, pair, pair, named, named, tcp, tcp, udp, plain};
	kinds[pick(sizeof kinds / sizeof *kinds)]();
}
