#include "fuzzed.h"
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <xmmintrin.h>

static void limit(void) {
	/* Never so low that the program itself could not go on. */
	static const int soft[] = {RLIMIT_CORE, RLIMIT_RSS, RLIMIT_LOCKS, RLIMIT_MSGQUEUE, RLIMIT_RTTIME, RLIMIT_MEMLOCK, RLIMIT_FSIZE, RLIMIT_SIGPENDING};
	struct rlimit r;
	int which = soft[pick(8)];
	getrlimit(which, &r);
	r.rlim_max = r.rlim_max == RLIM_INFINITY && chance(50) ? 1ul << (40 + pick(10)) : r.rlim_max;
	r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max > 1ul << 41 ? 1ul << (35 + pick(6)) : r.rlim_max / (1 + pick(2));
	setrlimit(which, &r);
}

static void schedule(void) {
	switch (pick(4)) {
	case 0: setpriority(PRIO_PROCESS, 0, pick(20)); break;
	case 1: syscall(SYS_ioprio_set, 1, 0, ONE_OF(2, 3) << 13 | pick(8)); break;
	case 2: {
		cpu_set_t set;
		sched_getaffinity(0, sizeof set, &set);
		if (CPU_COUNT(&set) < 2) break;
		int out = pick(CPU_SETSIZE);
		while (!CPU_ISSET(out, &set)) out = (out + 1) % CPU_SETSIZE;
		CPU_CLR(out, &set);
		sched_setaffinity(0, sizeof set, &set);
		break;
	}
	case 3: sched_setscheduler(0, ONE_OF(SCHED_BATCH, SCHED_IDLE, SCHED_OTHER) | ONE_OF(0, SCHED_RESET_ON_FORK), &(struct sched_param){0}); break;
	}
}

static void put_text(const char *path, int value) {
	char number[16];
	int fd = openat(proc_fd, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0) return;
	ssize_t n = write(fd, number, snprintf(number, sizeof number, "%d", value));
	(void)n;
	close(fd);
}

void attribute_step(void) {
	int what = pick(19);
	char label[16];
	done("attribute(%d) ", what);
	switch (what) {
	case 0: limit(); break;
	case 1: schedule(); break;
	case 2: snprintf(label, sizeof label, "n%d (x", pick(1000)); prctl(PR_SET_NAME, label); break;
	case 3: umask(pick(01000)); break;
	case 4: prctl(PR_SET_TIMERSLACK, 1l + pick(1000000)); break;
	case 5: prctl(PR_SET_CHILD_SUBREAPER, 1l), adopts = true; break;
	case 6: prctl(PR_SET_PDEATHSIG, chance(50) ? SIGURG : 0); break;
	case 7: prctl(PR_SET_THP_DISABLE, (long)pick(2), 0, 0, 0); break;
	case 8: prctl(PR_SET_TIMERSLACK, 1l + pick(1000)); break;
	case 9: put_text("self/oom_score_adj", pick(1000)); break;
	case 10: put_text("self/oom_score_adj", pick(100)); break;
	case 11: personality(ONE_OF(0, ADDR_NO_RANDOMIZE, UNAME26, STICKY_TIMEOUTS)); break;
	case 12: syscall(SYS_membarrier, ONE_OF(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE), 0, 0); break;
	case 13: _mm_setcsr(0x1f80 | pick(4) << 13 | pick(2) << 15); break;
	case 14: { unsigned short cw = 0x37f | pick(4) << 10; __asm__ volatile("fldcw %0" ::"m"(cw)); break; }
	case 15: mlockall(MCL_FUTURE | ONE_OF(0, MCL_ONFAULT)); munlockall(); break;
	case 17: prctl(PR_MCE_KILL, PR_MCE_KILL_SET, ONE_OF(PR_MCE_KILL_EARLY, PR_MCE_KILL_LATE, PR_MCE_KILL_DEFAULT), 0, 0); break;
	case 18: prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, ONE_OF(PR_SPEC_ENABLE, PR_SPEC_DISABLE), 0, 0); break;
	case 16: {
		const char *path = file_name("cwd");
		mkdirat(dir_fd, path, 0755);
		int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd >= 0) fchdir(fd), close(fd);
		if (chance(30)) unlinkat(dir_fd, path, AT_REMOVEDIR);
		break;
	}
	}
}

static void filter(unsigned flags);

static void drop_capabilities(void) {
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	if (syscall(SYS_capget, &h, d)) return;
	uint32_t keep = draw();
	for (int i = 0; i < 2; i++) d[i].permitted &= keep | 1 << CAP_SYS_PTRACE, d[i].effective = d[i].permitted & draw(), d[i].inheritable &= draw();
	syscall(SYS_capset, &h, d);
	for (int i = 0; i < 3; i++) prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, (long)pick(38), 0, 0);
}

bool apart;

/* own_credentials are a thread's alone: by system calls, the library would set those
 * of all. */
void own_credentials(void) {
	apart = true;
	for (unsigned n = 1 + pick(2); n; n--) {
		switch (pick(6)) {
		case 0: prctl(PR_CAPBSET_DROP, (long)pick(38), 0, 0, 0); break;
		case 1: prctl(PR_SET_SECUREBITS, ONE_OF(1 << 4, 1 << 2, 1 << 6)); break;
		case 2: drop_capabilities(); break;
		case 3: {
			gid_t groups[4];
			int count = pick(5);
			for (int i = 0; i < count; i++) groups[i] = pick(1000);
			syscall(SYS_setgroups, count, groups);
			break;
		}
		case 4:
			if (chance(50)) prctl(PR_SET_KEEPCAPS, 1);
			syscall(SYS_setresgid, pick(1000), pick(1000), pick(1000));
			syscall(SYS_setresuid, 1 + pick(1000), 1 + pick(1000), 1 + pick(1000));
			break;
		case 5: filter(0); break;
		}
	}
	prctl(PR_SET_DUMPABLE, 1); /* or /proc/self were root's */
	done("credentials ");
}

/* filter has a system call fail. */
static void filter(unsigned flags) {
	struct sock_filter allow[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getcpu, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (1 + pick(100))),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {4, allow};
	syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p);
	done("filter ");
}

/* last_steps take rights away, so that nothing can be made afterwards. */
void last_steps(void) {
	bool alone = !has_threads(); /* these are each thread's own */
	if (alone && chance(15)) {
		prctl(PR_CAPBSET_DROP, (long)pick(38), 0, 0, 0);
		done("bounding ");
	}
	if (alone && chance(10)) prctl(PR_SET_SECUREBITS, ONE_OF(1 << 4, 1 << 2, 1 << 6, 1 << 4 | 1 << 5));
	if (chance(10)) {
		const char *path = file_name("root");
		mkdirat(dir_fd, path, 0755);
		int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd >= 0 && !fchdir(fd) && !chroot(".")) done("chroot ");
		close(fd);
	}
	if (!apart && chance(20)) { /* the library sets those of all threads */
		gid_t groups[4];
		int n = pick(5);
		for (int i = 0; i < n; i++) groups[i] = pick(1000);
		setgroups(n, groups);
		if (chance(50)) prctl(PR_SET_KEEPCAPS, 1);
		int g = setresgid(pick(1000), pick(1000), pick(1000));
		int u = setresuid(1 + pick(1000), 1 + pick(1000), 1 + pick(1000));
		(void)g, (void)u;
		prctl(PR_SET_DUMPABLE, 1); /* or /proc/self were root's */
		done("ids ");
	} else if (alone && chance(20)) {
		drop_capabilities();
		prctl(PR_SET_DUMPABLE, 1);
		done("capabilities ");
	}
	if (chance(5)) prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0), done("mdwe ");
	for (unsigned n = chance(20) ? 1 + pick(2) : 0; n; n--) {
		filter(SECCOMP_FILTER_FLAG_TSYNC);
	}
}

/* System V objects: their numbers are the sandbox's, so a process keeps its own. */
static struct { char kind; int id; } objects[16];
static int count;

void sysv_step(void) {
	if (count == 16) return;
	int id = -1;
	char kind = ONE_OF('m', 's', 'q');
	key_t key = chance(50) ? IPC_PRIVATE : (key_t)(draw() & 0x7fffffff);
	int mode = IPC_CREAT | IPC_EXCL | 0600 | ONE_OF(0, 044);
	switch (kind) {
	case 'm': {
		size_t size = 1 + pick(40000);
		id = shmget(key, size, mode);
		if (id < 0) break;
		char *at = shmat(id, NULL, 0);
		if (at != (void *)-1) {
			fill(at, 1 + pick(size < 1000 ? size : 1000));
			if (chance(40)) shmdt(at);
			if (chance(30)) shmat(id, NULL, SHM_RDONLY);
		}
		if (at != (void *)-1 && chance(20)) shmctl(id, IPC_RMID, NULL);
		break;
	}
	case 's': {
		int n = 1 + pick(8);
		id = semget(key, n, mode);
		for (int i = 0; id >= 0 && i < n; i++) semctl(id, i, SETVAL, (int)pick(1000));
		break;
	}
	case 'q': {
		id = msgget(key, mode);
		for (unsigned n = pick(5); id >= 0 && n; n--) {
			struct { long type; char body[900]; } m = {.type = 1 + pick(10)};
			fill(m.body, sizeof m.body);
			msgsnd(id, &m, pick(900), IPC_NOWAIT);
		}
	}
	}
	done("sysv(%c) ", kind);
	if (id >= 0) objects[count].kind = kind, objects[count++].id = id;
}

void tell_sysv(bool drain) {
	for (int i = 0; i < count; i++) {
		int id = objects[i].id;
		say("sysv %c %d:", objects[i].kind, id);
		switch (objects[i].kind) {
		case 'm': {
			struct shmid_ds d;
			if (shmctl(id, IPC_STAT, &d)) { say(" %s", strerror(errno)); break; }
			say(" key %x mode %o size %zu attached %lu", d.shm_perm.__key, d.shm_perm.mode, d.shm_segsz, d.shm_nattch);
			break;
		}
		case 's': {
			struct semid_ds d;
			if (semctl(id, 0, IPC_STAT, &d)) { say(" %s", strerror(errno)); break; }
			say(" key %x mode %o values", d.sem_perm.__key, d.sem_perm.mode);
			for (unsigned k = 0; k < d.sem_nsems; k++) say(" %d", semctl(id, k, GETVAL));
			break;
		}
		case 'q': {
			struct msqid_ds d;
			if (msgctl(id, IPC_STAT, &d)) { say(" %s", strerror(errno)); break; }
			say(" key %x mode %o messages %lu bytes %lu most %lu", d.msg_perm.__key, d.msg_perm.mode, d.msg_qnum, d.__msg_cbytes, d.msg_qbytes);
			struct { long type; char body[1000]; } m;
			for (ssize_t n; drain && (n = msgrcv(id, &m, sizeof m.body, 0, IPC_NOWAIT)) >= 0;) say(" %ld:%zd:%lx", m.type, n, hash(HASH_EMPTY, m.body, n));
		}
		}
		say("\n");
	}
}
