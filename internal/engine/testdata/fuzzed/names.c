#include "fuzzed.h"
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Files whose names go, change or were never there while they are open. */

static char data[1 << 15];

static int written(int dir, const char *path, int flags) {
	int fd = openat(dir, path, flags | O_RDWR | O_CLOEXEC, 0644);
	if (fd < 0) die(path);
	size_t n = 1 + pick(sizeof data);
	fill(data, n);
	if (pwrite(fd, data, n, chance(30) ? pick(1 << 22) : 0) < 0) die("write a file");
	return fd;
}

/* neighbours maps two parts of a file beside each other, which may become one. */
static void neighbours(int fd, bool shared) {
	const size_t half = 3 * 4096;
	char *m = mmap(NULL, 2 * half, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) return;
	int protection = ONE_OF(PROT_READ, PROT_READ | PROT_WRITE), flags = shared ? MAP_SHARED : ONE_OF(MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED);
	for (int i = 0; i < 2; i++)
		if (mmap(m + half * i, half, protection, flags | MAP_FIXED, fd, half * i) == MAP_FAILED) die("map a part");
	if (protection & PROT_WRITE && flags == MAP_PRIVATE && chance(50) && pwrite(fd, "", 1, 2 * half - 1) == 1) m[pick(2 * half)] = 1;
}

static void replaced(void) {
	char path[128], other[128];
	strcpy(path, file_name("replaced")), strcpy(other, file_name("replacing"));
	int fd = written(dir_fd, path, O_CREAT), new = written(dir_fd, other, O_CREAT);
	if (ftruncate(fd, 8 * 4096)) die("size of a file");
	if (chance(50)) neighbours(fd, false);
	if (renameat(dir_fd, other, dir_fd, path)) die("replace a file");
	if (chance(30)) neighbours(new, false);
	done("replaced ");
	if (chance(70)) place(fd);
	else close(fd);
	if (chance(40)) place(new);
	else close(new);
}

static void linked(void) {
	char path[128], below[160];
	strcpy(path, file_name("linked"));
	int fd = written(dir_fd, path, O_CREAT);
	snprintf(below, sizeof below, "%s.d", path);
	mkdirat(dir_fd, below, 0755);
	strcat(below, "/other");
	if (linkat(dir_fd, path, dir_fd, below, 0)) die("link");
	if (chance(70)) unlinkat(dir_fd, path, 0);
	done("linked ");
	place(fd);
}

static void nameless(void) {
	int fd = written(dir_fd, ".", O_TMPFILE);
	if (chance(40)) neighbours(fd, false);
	done("nameless ");
	place(fd);
}

static void gone_directory(void) {
	char path[128];
	strcpy(path, file_name("gone"));
	mkdirat(dir_fd, path, 0755);
	int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY), n = pick(6);
	if (fd < 0) die("open a directory");
	char entry[16];
	for (int i = 0; i < n; i++) snprintf(entry, sizeof entry, "e%d", i), close(openat(fd, entry, O_CREAT | O_WRONLY, 0600));
	if (chance(60)) syscall(SYS_getdents64, fd, data, 80);
	for (int i = 0; i < n; i++) snprintf(entry, sizeof entry, "e%d", i), unlinkat(fd, entry, 0);
	unlinkat(dir_fd, path, AT_REMOVEDIR);
	done("gone-directory ");
	place(fd);
}

static void places(void) {
	char path[128];
	strcpy(path, file_name("place"));
	switch (pick(4)) {
	case 0: symlinkat("to/nowhere", dir_fd, path); break;
	case 1: mkfifoat(dir_fd, path, 0600); break;
	case 2: mkdirat(dir_fd, path, 0700); break;
	case 3: close(written(dir_fd, path, O_CREAT));
	}
	int fd = openat(dir_fd, path, O_PATH | O_NOFOLLOW | ONE_OF(0, O_CLOEXEC));
	if (chance(30)) {
		char other[128];
		strcpy(other, file_name("moved"));
		renameat(dir_fd, path, dir_fd, other);
	}
	done("place ");
	place(fd);
}

static void in_shm(void) {
	char path[200];
	snprintf(path, sizeof path, "/dev/shm/fuzzed-%s-%s", strrchr(dir_path, '/') + 1, file_name("shm"));
	int fd = written(AT_FDCWD, path, O_CREAT | O_EXCL);
	if (chance(50)) neighbours(fd, true); /* a private one shows otherwise what it is of: docs/limits.md */
	if (chance(30)) flock(fd, LOCK_SH);
	if (chance(30)) unlink(path);
	if (chance(30)) fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096);
	done("shm ");
	place(fd);
}

/* in_dev makes nothing that takes room: there is little, and all programs share it. */
static void in_dev(void) {
	char path[200];
	snprintf(path, sizeof path, "/dev/fuzzed-%s-%s", strrchr(dir_path, '/') + 1, file_name("dev"));
	int flags = O_RDONLY | O_DIRECTORY, bad;
	switch (pick(3)) {
	case 0: bad = mkfifo(path, 0622), flags = O_RDWR | O_NONBLOCK; break;
	case 1: bad = mkdir(path, 0700); break;
	default: bad = symlink(path + 1, path), flags = O_PATH | O_NOFOLLOW;
	}
	int fd = bad ? -1 : open(path, flags | ONE_OF(0, O_CLOEXEC));
	if (fd >= 0 && flags & O_RDWR && write(fd, data, pick(300)) < 0) die("write to a FIFO");
	done("dev ");
	place(fd);
}

void names_step(void) {
	static void (*const kinds[])(void) = {replaced, replaced, linked, nameless, gone_directory, places, in_shm, in_dev};
	kinds[pick(sizeof kinds / sizeof *kinds)]();
}
