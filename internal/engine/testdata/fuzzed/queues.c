#include "fuzzed.h"
#include <mqueue.h>
#include <sys/stat.h>

/* POSIX message queues, by system calls: the library's descriptors are the kernel's. */
static int get_attr(int fd, struct mq_attr *a) { return syscall(SYS_mq_getsetattr, fd, NULL, a); }

bool is_queue(int fd) {
	struct mq_attr a;
	return !get_attr(fd, &a);
}

static char message[512];

static char *own_queue; /* the last one that nobody has open */

void queue_step(void) {
	static int made;
	char path[128];
	struct mq_attr a = {.mq_maxmsg = 1 + pick(6), .mq_msgsize = 1 + pick(400)};
	snprintf(path, sizeof path, "fuzzed-%s-%s-%d", strrchr(dir_path, '/') + 1, name, made++);
	int w = syscall(SYS_mq_open, path, O_CREAT | O_EXCL | O_RDWR | O_NONBLOCK | O_CLOEXEC, (mode_t)ONE_OF(0600, 0644, 0622, 0400), &a);
	if (w < 0) return; /* RLIMIT_MSGQUEUE */
	for (unsigned n = pick(7); n; n--) {
		size_t k = pick(a.mq_msgsize + 1);
		fill(message, k);
		syscall(SYS_mq_timedsend, w, message, k, ONE_OF(0, 0, 1, 5, 32767), NULL);
	}
	done("queue ");
	if (chance(20)) {
		own_queue = strdup(path);
		close(w);
		return;
	}
	int fd = chance(50) ? syscall(SYS_mq_open, path, ONE_OF(O_RDONLY, O_WRONLY, O_RDWR) | ONE_OF(0, O_NONBLOCK)) : -1;
	if (chance(25)) syscall(SYS_mq_unlink, path);
	if (fd < 0 || chance(50)) place(w);
	else close(w);
	place(fd);
}

void tell_queue(int fd) {
	struct mq_attr a;
	struct stat s;
	if (get_attr(fd, &a) || fstat(fd, &s)) return;
	say(" queue of %ld messages of %ld, %ld there, flags %lx mode %o uid %d gid %d links %ld", a.mq_maxmsg, a.mq_msgsize, a.mq_curmsgs, a.mq_flags,
		s.st_mode, s.st_uid, s.st_gid, (long)s.st_nlink);
}

void drain_queue(int fd) {
	struct mq_attr a = {.mq_flags = O_NONBLOCK};
	if (syscall(SYS_mq_getsetattr, fd, &a, NULL)) die("a queue that does not wait");
	unsigned priority = 0;
	ssize_t n;
	while ((n = syscall(SYS_mq_timedreceive, fd, message, sizeof message, &priority, NULL)) >= 0)
		say(" message %zd of %u %lx", n, priority, hash(HASH_EMPTY, message, n));
	say(" then %s", strerror(errno));
}

void tell_own_queue(bool drain) {
	if (!own_queue) return;
	int fd = syscall(SYS_mq_open, own_queue, drain ? O_RDWR | O_NONBLOCK : O_RDONLY);
	say("left queue:");
	if (fd < 0) say(" %s", strerror(errno));
	else {
		tell_queue(fd);
		if (drain) drain_queue(fd);
		close(fd);
	}
	say("\n");
}
