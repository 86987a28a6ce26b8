#include "fuzzed.h"

#define PAGE 4096ul

static char smaps[1 << 19];

/* An area is what adjacent lines of maps have in common: the kernel does not
 * always merge them. */
static struct area {
	unsigned long begin, end, offset;
	char permissions[8], flags[128], path[200];
} area;

static uint64_t content(unsigned long begin, unsigned long end, const char *path) {
	static char pages[64 * PAGE];
	static uint64_t map[512];
	static const char zero[PAGE];
	uint64_t h = HASH_EMPTY;
	int mem = openat(proc_fd, "self/mem", O_RDONLY | O_CLOEXEC), pagemap = openat(proc_fd, "self/pagemap", O_RDONLY | O_CLOEXEC);
	if (mem < 0 || pagemap < 0) die("memory of this process");
	bool big = end - begin > 16ul << 20 && !*path;
	for (unsigned long at = begin; at < end;) {
		if (big) { /* what has no page is zero, and stays without */
			unsigned long n = (end - at) / PAGE;
			if (n > 512) n = 512;
			ssize_t got = pread(pagemap, map, n * 8, at / PAGE * 8);
			if (got <= 0) break;
			for (unsigned long i = 0; i < got / 8ul; i++)
				if (map[i] >> 62 && pread(mem, pages, PAGE, at + i * PAGE) == PAGE && memcmp(pages, zero, PAGE)) {
					unsigned long where = at + i * PAGE;
					h = hash(hash(h, &where, sizeof where), pages, PAGE);
				}
			at += got / 8ul * PAGE;
			continue;
		}
		size_t want = end - at < sizeof pages ? end - at : sizeof pages;
		ssize_t got = pread(mem, pages, want, at);
		if (got <= 0) { /* a guard page, or beyond the end of the file */
			h = hash(h, "!", 1);
			at += PAGE;
			continue;
		}
		for (ssize_t i = 0; i + (ssize_t)PAGE <= got; i += PAGE)
			if (memcmp(pages + i, zero, PAGE)) {
				unsigned long where = at + i;
				h = hash(hash(h, &where, sizeof where), pages + i, PAGE);
			}
		at += got & ~(PAGE - 1);
		if (got < (ssize_t)PAGE) at += PAGE;
	}
	close(mem), close(pagemap);
	return h;
}

/* Areas that belong to the program are told without their content: the telling
 * itself changes it. */
static bool own(const struct area *a) {
	extern char __executable_start, _end;
	unsigned long here = (unsigned long)&here;
	return (a->begin <= (unsigned long)&_end && (unsigned long)&__executable_start < a->end) || (a->begin <= here && here < a->end) || *a->path == '[' || is_stack(a->begin, a->end);
}

static bool draining; /* what is written meanwhile may be seen */

static void tell_area(void) {
	if (area.end == area.begin) return;
	bool kernel = !strncmp(area.path, "[v", 2);
	say("map %lx-%lx %s %lx %s%s", area.begin, area.end, area.permissions, area.offset, area.path, kernel ? "" : area.flags);
	bool later = draining && (*area.path == '/' || !strcmp(area.path, "deleted")) && area.permissions[3] == 'p'; /* of a file that was written to: docs/limits.md */
	if (!later && !own(&area) && !strstr(area.flags, " wf") && !strstr(area.flags, " dp")) say(" %lx", content(area.begin, area.end, area.path));
	say("\n");
}

static void add(const struct area *a) {
	bool adjacent = a->begin == area.end && !strcmp(a->permissions, area.permissions) && !strcmp(a->flags, area.flags) && !strcmp(a->path, area.path) &&
		(*a->path != '/' || a->offset == area.offset + (area.end - area.begin));
	if (adjacent) {
		area.end = a->end;
		return;
	}
	tell_area();
	area = *a;
}

void tell_memory(bool drain) {
	draining = drain;
	ssize_t n = read_proc("self/smaps", smaps, sizeof smaps - 1);
	if (n <= 0 || n == sizeof smaps - 1) die("smaps");
	smaps[n] = 0;
	memset(&area, 0, sizeof area);
	struct area next = {0};
	for (char *line = smaps, *end; line < smaps + n; line = end + 1) {
		if (!(end = strchr(line, '\n'))) break;
		*end = 0;
		int at = 0;
		struct area line_of = {0};
		if (!strncmp(line, "VmFlags:", 8)) {
			next.flags[0] = 0;
			for (char *f = strtok(line + 8, " "); f; f = strtok(NULL, " "))
				/* Of the tracking of writes, of the accounting, and that there may be guard
				 * pages, which stays with what was merged: docs/limits.md. */
				if (strcmp(f, "sd") && strcmp(f, "uw") && strcmp(f, "ac") && strcmp(f, "nr") && strcmp(f, "gu") && (strcmp(f, "me") || strcmp(next.path, "deleted")))
					strcat(strcat(next.flags, " "), f);
			add(&next);
		} else if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %n", &line_of.begin, &line_of.end, line_of.permissions, &line_of.offset, &at) == 4 && at) {
			next = line_of;
			/* What was written in the sandbox is mapped from a checkpoint: docs/limits.md. */
			const char *upper = strstr(line + at, "/upper/");
			snprintf(next.path, sizeof next.path, "%s", upper ? upper + 6 : line + at);
			/* What has no name any more has another one afterwards, and is in memory that may hold programs: docs/limits.md. */
			if (strstr(next.path, " (deleted)") && strncmp(next.path, "/SYSV", 5)) strcpy(next.path, "deleted");
			else if (!strncmp(next.path, "/SYSV", 5)) strcpy(next.path, "System V"); /* one that was removed has no key afterwards */
		}
	}
	tell_area();
}
