// A storm of execves. The first process starts others, which have threads and execute
// themselves again and again, each within some milliseconds: those with an even number
// by their main thread, others by another one, which takes the main one's number then.
// For each line that it is sent, the first answers when all others have executed
// themselves five times more, and none found itself a real-time one the last time. If the
// line is "rest", it answers when all others have come to rest, until the next line.
//
//	execstorm PROCESSES MICROSECONDS SPINNERS main|other|both
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS = 64, AREA = 4096, SLEEPERS = 2 };

static volatile unsigned long *slots; // how often each process has executed itself, and behind that
static volatile unsigned long *policies; // by which policy it was scheduled then
static volatile unsigned long *resting; // whether each process rests
static volatile unsigned long *calm; // whether all are to
static char **args;
static int self;

static void lay(void) {
	policies = slots + SLOTS;
	resting = policies + SLOTS;
	calm = resting + SLOTS;
}

static void *spin(void *unused) {
	for (;;)
		getppid();
	return unused;
}

static void *rest(void *unused) {
	for (;;)
		pause();
	return unused;
}

static void *again(void *unused) {
	(void)unused;
	usleep(atol(args[2]) * (random() % 1000) / 1000);
	while (*calm) {
		resting[self] = 1;
		usleep(1000);
	}
	resting[self] = 0;
	execv("/proc/self/exe", args);
	_exit(3);
}

static void start(void *(*f)(void *)) {
	pthread_t t;
	if (pthread_create(&t, 0, f, 0) != 0)
		_exit(4);
}

// one is a process that executes itself: execstorm -NUMBER MICROSECONDS SPINNERS HOW FD.
static int one(int number) {
	self = number;
	lay();
	policies[number] = sched_getscheduler(0);
	srandom(getpid() + ++slots[number] * 7919);
	for (int i = 0; i < atoi(args[3]); i++)
		start(spin);
	for (int i = 0; i < SLEEPERS; i++)
		start(rest);
	if (args[4][0] == 'm' || (args[4][0] == 'b' && number % 2 == 0))
		again(0);
	start(again);
	rest(0);
	return 0;
}

static void say(const char *what) {
	printf("= %s\n", what);
	fflush(stdout);
}

int main(int argc, char **argv) {
	char line[100], number[20], area[20];
	unsigned long was[SLOTS];
	args = argv;
	if (argc == 6) {
		slots = mmap(0, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[5]), 0);
		return slots == MAP_FAILED ? 5 : one(-atoi(argv[1]) - 1);
	}
	if (argc != 5)
		return 2;
	int n = atoi(argv[1]), fd = memfd_create("slots", 0);
	if (n > SLOTS || fd < 0 || ftruncate(fd, AREA) != 0)
		return 2;
	slots = mmap(0, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (slots == MAP_FAILED)
		return 2;
	lay();
	snprintf(area, sizeof area, "%d", fd);
	for (int i = 0; i < n; i++) {
		if (fork() == 0) {
			snprintf(number, sizeof number, "-%d", i + 1);
			char *of[] = {"execstorm", number, argv[2], argv[3], argv[4], area, NULL};
			execv("/proc/self/exe", of);
			_exit(3);
		}
	}
	say("ready");
	while (fgets(line, sizeof line, stdin)) {
		*calm = strcmp(line, "rest\n") == 0;
		if (*calm) {
			for (int i = 0; i < n; i++)
				while (!resting[i])
					usleep(1000);
			say("all rest");
			continue;
		}
		memcpy(was, (void *)slots, sizeof was);
		const char *answer = "all go on";
		for (int i = 0; i < n; i++) {
			while (slots[i] < was[i] + 5)
				usleep(1000);
			if (policies[i] != SCHED_OTHER)
				answer = "one is real-time";
		}
		say(waitpid(-1, 0, WNOHANG) == 0 ? answer : "one has ended");
	}
	return 0;
}
