package engine_test

import (
	"strings"
	"testing"
)

// randomProgram answers each line with random numbers of all sources that keep
// state in memory: the kernel's generator in the vDSO (Linux 6.11), whose state is
// droppable memory that the caller maps; the C library's arc4random; and memory
// of its own that is marked to be wiped, which it fills once.
const randomProgram = `
#define _GNU_SOURCE
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
struct params { uint32_t size, prot, flags, reserved[13]; };
typedef ssize_t vgetrandom(void *, size_t, unsigned, void *, size_t);
static vgetrandom *find(void) {
	uintptr_t base = getauxval(AT_SYSINFO_EHDR); Elf64_Ehdr *e = (void *)base; Elf64_Phdr *ph = (void *)(base + e->e_phoff);
	Elf64_Dyn *d = 0; Elf64_Sym *sym = 0; char *str = 0; uint32_t *hash = 0, *gnu = 0; size_t n = 0;
	for (int i = 0; i < e->e_phnum; i++) if (ph[i].p_type == PT_DYNAMIC) d = (void *)(base + ph[i].p_offset);
	for (; d && d->d_tag; d++) {
		if (d->d_tag == DT_SYMTAB) sym = (void *)(base + d->d_un.d_ptr);
		if (d->d_tag == DT_STRTAB) str = (void *)(base + d->d_un.d_ptr);
		if (d->d_tag == DT_HASH) hash = (void *)(base + d->d_un.d_ptr);
		if (d->d_tag == DT_GNU_HASH) gnu = (void *)(base + d->d_un.d_ptr);
	}
	if (!sym || !str) return 0;
	if (hash) n = hash[1];
	else if (gnu) { // the last chain ends the table
		uint32_t *buckets = gnu + 4 + gnu[2] * 2, *chains = buckets + gnu[0];
		for (uint32_t i = 0; i < gnu[0]; i++) if (buckets[i] >= n) { n = buckets[i]; while (!(chains[n - gnu[1]] & 1)) n++; n++; }
	}
	for (size_t i = 0; i < n; i++) if (!strcmp(str + sym[i].st_name, "__vdso_getrandom")) return (void *)(base + sym[i].st_value);
	return 0;
}
int main(void) {
	char line[100]; vgetrandom *vdso = find(); void *state = 0; struct params p = {0};
	if (vdso) {
		vdso(0, 0, 0, &p, ~0UL);
		state = mmap(0, 4096, p.prot, p.flags, -1, 0);
		if (state == MAP_FAILED) return 3;
	}
	unsigned char *own = mmap(0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (madvise(own, 4096, MADV_WIPEONFORK)) return 4;
	memset(own, 7, 8192);
	printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		uint64_t a = 0, b; 
		if (vdso && vdso(&a, 8, 0, state, p.size) != 8) return 5;
		arc4random_buf(&b, 8);
		int wiped = 1, kept = 1;
		for (int i = 0; i < 4096; i++) { wiped &= own[i] == 0; kept &= own[4096 + i] == 7; }
		printf("= %s %016lx %016lx %s%s\n", vdso ? "vdso" : "none", a, b, wiped ? "wiped" : "there", kept ? "" : " spoilt"); fflush(stdout);
	}
}
`

// No copy of a program repeats the random numbers of another, where their state
// is in memory that the kernel wipes in a child; the live program keeps it.
func TestKindsOfRandomness(t *testing.T) {
	h := newHost(t)
	box := h.create()
	h.put(box, "/root/random", build(t, randomProgram))
	x := h.exec(box, false, "/root/random")
	x.until("= ready")
	seen := map[string]string{}
	draw := func(x *talk, who, memory string) {
		t.Helper()
		for range 2 {
			f := strings.Fields(x.ask("draw", "= "))
			if len(f) != 4 || f[3] != memory {
				t.Fatalf("%s: %q, the memory is not %s", who, f, memory)
			}
			if f[0] == "none" {
				f = f[1:]
				t.Logf("the vDSO of this kernel has no getrandom (Linux 6.11)")
			}
			for _, v := range f[1 : len(f)-1] {
				if first, ok := seen[v]; ok {
					t.Errorf("%s draws %s as %s did", who, v, first)
				}
				seen[v] = who
			}
		}
	}
	draw(x, "the program", "there")
	c := h.checkpoint(box)
	draw(x, "the live program", "there")
	for i, f := range h.fork(box, c.ID, 4) {
		draw(h.adopt(f, x.id), "fork "+string(rune('0'+i)), "wiped")
		h.remove(f)
	}
	for range 3 {
		_, ss := h.rollback(box, c.ID)
		x = ss[x.id]
		draw(x, "after a rollback", "wiped")
	}
	c = h.checkpoint(box)
	draw(x, "live after a rollback", "wiped")
	_, ss := h.rollback(box, c.ID)
	draw(ss[x.id], "after a rollback of a rollback", "wiped")
}
