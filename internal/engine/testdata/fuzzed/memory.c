#include "fuzzed.h"
#include <sys/mman.h>

#define PAGE 4096ul
#ifndef MADV_COLLAPSE /* the C library's headers may be older */
#define MADV_COLLAPSE 25
#endif
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

/* What this process has mapped here, so that later steps change it. */
static struct { char *at; size_t pages; bool private; } areas[64];
static int count;

static char page[PAGE];

/* write_pages writes some pages where that is permitted. */
static void write_pages(char *at, size_t pages) {
	for (unsigned n = pick(8); n && pages; n--) {
		fill(page, chance(50) ? PAGE : 64);
		/* By the kernel, which gives an error where a store would be a signal. */
		int fd = openat(proc_fd, "self/mem", O_RDWR | O_CLOEXEC);
		ssize_t k = fd < 0 ? -1 : pwrite(fd, page, PAGE, (off_t)(uintptr_t)(at + PAGE * pick(pages)));
		(void)k;
		close(fd);
	}
}

static void keep(void *at, size_t pages, bool private) {
	if (at == MAP_FAILED) return;
	write_pages(at, pages);
	if (count < 64) areas[count].at = at, areas[count].private = private, areas[count++].pages = pages;
}

static int protection(void) { return ONE_OF(PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC, PROT_WRITE); }

static void anonymous(void) {
	size_t pages = 1 + pick(64);
	if (chance(10)) pages = 512 + pick(1024);
	int flags = ONE_OF(MAP_PRIVATE, MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED, MAP_SHARED, MAP_DROPPABLE) | MAP_ANONYMOUS |
		ONE_OF(0, 0, 0, MAP_NORESERVE, MAP_POPULATE, MAP_LOCKED, MAP_STACK, MAP_32BIT);
	void *hint = chance(30) ? (void *)(0x300000000000 + ((draw() % (1ul << 40)) & ~(PAGE - 1))) : NULL;
	done("anonymous(%x) ", flags);
	keep(mmap(hint, pages * PAGE, protection(), flags, -1, 0), pages, flags & MAP_PRIVATE);
}

static void sparse(void) {
	char *at = mmap(NULL, 1ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) return;
	for (unsigned n = pick(6); n; n--) fill(at + (draw() & ((1ul << 30) - PAGE)), 100);
	done("sparse ");
}

static void of_file(void) {
	const char *path = file_name("mapped");
	int fd = openat(dir_fd, path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	if (fd < 0) die("create a file to map");
	size_t pages = 1 + pick(32), size = 1 + pick((pages + 1) * PAGE); /* the last pages may be beyond the end */
	int flags = ONE_OF(MAP_PRIVATE, MAP_SHARED);
	if (flags == MAP_SHARED) size = (size + PAGE - 1) & ~(PAGE - 1); /* writing back clears what is behind the end */
	if (ftruncate(fd, size)) die("size of a file");
	for (unsigned n = pick(5); n; n--) {
		fill(page, PAGE);
		if (pwrite(fd, page, PAGE, pick(pages) * PAGE) < 0) die("write a file to map");
	}
	off_t at = chance(30) ? pick(pages) * PAGE : 0;
	char *m = mmap(NULL, pages * PAGE, protection(), flags | ONE_OF(0, 0, MAP_POPULATE), fd, at);
	if (chance(25)) unlinkat(dir_fd, path, 0);
	if (chance(70)) close(fd);
	done("file-map(%x) ", flags);
	keep(m, pages, flags == MAP_PRIVATE);
}

static void change(void) {
	if (!count) return;
	int i = pick(count);
	char *at = areas[i].at;
	size_t pages = areas[i].pages, first = pick(pages), n = 1 + pick(pages - first);
	char *part = at + first * PAGE;
	int advice = 0;
	switch (pick(12)) {
	case 0: mprotect(part, n * PAGE, protection()); break;
	case 1:
		munmap(part, n * PAGE);
		areas[i] = areas[--count];
		break;
	case 2: {
		int flags = ONE_OF(MREMAP_MAYMOVE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, MREMAP_MAYMOVE);
		size_t to = flags & MREMAP_DONTUNMAP ? n : 1 + pick(2 * n);
		void *m = mremap(part, n * PAGE, to * PAGE, flags);
		if (m != MAP_FAILED) {
			bool private = areas[i].private;
			areas[i] = areas[--count];
			keep(m, to, private);
		}
		break;
	}
	case 3: case 4: case 5:
		advice = ONE_OF(MADV_DONTFORK, MADV_WIPEONFORK, MADV_DONTDUMP, MADV_DODUMP, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_SEQUENTIAL, MADV_RANDOM,
			MADV_NORMAL, MADV_DONTNEED, MADV_COLD, MADV_MERGEABLE, MADV_WILLNEED, MADV_DOFORK, MADV_KEEPONFORK, MADV_UNMERGEABLE,
			MADV_REMOVE, MADV_PAGEOUT, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_POPULATE_READ, MADV_DONTNEED_LOCKED, MADV_COLLAPSE);
		madvise(part, n * PAGE, advice);
		break;
	case 6: chance(50) ? mlock(part, n * PAGE) : mlock2(part, n * PAGE, MLOCK_ONFAULT); break;
	case 7: munlock(part, n * PAGE); break;
	case 8: write_pages(part, n); break;
	case 11:
		syscall(SYS_mseal, part, n * PAGE, 0);
		areas[i] = areas[--count];
		break;
	case 9: case 10:
		advice = ONE_OF(MADV_GUARD_INSTALL, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE);
		if (areas[i].private) madvise(part, n * PAGE, advice); /* in shared ones they are lost: docs/limits.md */
	}
	done("change(%d) ", advice);
}

static void heap(void) {
	char *was = sbrk(pick(64) * PAGE);
	if (was != (void *)-1) write_pages(was, ((char *)sbrk(0) - was) / PAGE);
	done("heap ");
}

static void grows_down(void) {
	char *m = mmap(NULL, 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) return;
	munmap(m, 64 * PAGE);
	m = mmap(m + 60 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
	done("grows-down ");
	keep(m, 4, true);
}

void memory_step(void) {
	static void (*const kinds[])(void) = {anonymous, anonymous, anonymous, sparse, of_file, of_file, of_file, change, change, change, change, change, change, heap, grows_down};
	kinds[pick(sizeof kinds / sizeof *kinds)]();
}
