#include "fuzzed.h"
#include <stdarg.h>
#include <sys/stat.h>

uint64_t rng;
char name[64] = "0";
int proc_fd, dir_fd;
char dir_path[64];

uint64_t draw(void) {
	uint64_t z = rng += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

void fill(void *p, size_t n) {
	unsigned char *b = p;
	while (n--) *b++ = draw() >> 24;
}

uint64_t hash(uint64_t h, const void *p, size_t n) {
	const unsigned char *b = p;
	while (n--) h = (h ^ *b++) * 1099511628211ull;
	return h;
}

char text[1 << 20];
size_t text_len;
char steps[1 << 16];
size_t steps_len;

static void append(char *to, size_t *len, size_t max, const char *format, va_list args) {
	int n = vsnprintf(to + *len, max - *len, format, args);
	if (n < 0 || *len + n >= max) die("too much text");
	*len += n;
}

void say(const char *format, ...) {
	va_list args;
	va_start(args, format);
	append(text, &text_len, sizeof text, format, args);
	va_end(args);
}

void forget(void) { text_len = 0; }

void done(const char *format, ...) {
	va_list args;
	va_start(args, format);
	append(steps, &steps_len, sizeof steps, format, args);
	va_end(args);
}

void die(const char *what) {
	dprintf(2, "fuzzed %s: %s: %s\n", name, what, strerror(errno));
	dprintf(1, "! process %s: %s: %s\n", name, what, strerror(errno));
	_exit(1);
}

int own_fd(int fd) {
	if (fd < 0) die("open");
	int n = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_OWN_FD);
	if (n < 0) die("move a descriptor");
	close(fd);
	return n;
}

const char *file_name(const char *kind) {
	static char path[128];
	static int n;
	snprintf(path, sizeof path, "%s-%s-%d", kind, name, n++);
	return path;
}

/* What is made, by how often. */
static void step(void) {
	switch (pick(26)) {
	case 0 ... 6: files_step(); break;
	case 7 ... 9: socket_step(); break;
	case 10 ... 14: memory_step(); break;
	case 15: case 16: signal_step(); break;
	case 17: case 18: attribute_step(); break;
	case 19: sysv_step(); break;
	case 20: queue_step(); break;
	case 21 ... 23: names_step(); break;
	case 24: case 25: stream_step(); break;
	}
}

/* settle makes the state of a process, its children and threads. */
void settle(int depth) {
	for (unsigned n = 10 + pick(50); n; n--) {
		if (depth < 2 && chance(4)) start_child(depth + 1);
		else if (chance(4)) start_thread();
		else step();
	}
	if (depth > 0) last_steps();
	int fd;
	while ((fd = fcntl(0, F_DUPFD, 3)) < FIRST_OWN_FD && fd > 0 && chance(50)) close(fd); /* numbers with and without holes */
	if (fd > 0) close(fd);
}

/* deepen makes the stack as big as it will be. */
static __attribute__((noinline)) void deepen(void) {
	volatile char deep[1 << 19];
	memset((void *)deep, 0, sizeof deep);
}

int main(int argc, char **argv) {
	if (argc != 2) return 2;
	rng = strtoull(argv[1], NULL, 10) * 0x2545f4914f6cdd1d + 1;
	deepen();
	umask(0);
	proc_fd = own_fd(open("/proc", O_PATH | O_DIRECTORY));
	mkdir("/root/fuzzed", 0777);
	snprintf(dir_path, sizeof dir_path, "/root/fuzzed/%s", argv[1]);
	if (mkdir(dir_path, 0777) || chdir(dir_path)) die(dir_path);
	dir_fd = own_fd(open(dir_path, O_RDONLY | O_DIRECTORY));
	block_signals();
	settle(0);
	dprintf(1, "= ready\n");
	serve();
}
