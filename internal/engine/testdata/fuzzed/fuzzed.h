/*
 * fuzzed SEED: a program that brings itself into a random state and tells what
 * it finds of it, as text that is the same as long as the state is.
 *
 * main.c has the conversation with the test, tree.c the processes, thread.c the
 * threads. What makes state is in files.c, names.c, sockets.c, streams.c, memory.c,
 * signals.c, attributes.c and queues.c; what tells of it in tell*.c. Nothing allocates after the start,
 * so that telling does not change what is told.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* Random numbers, the same for the same seed (SplitMix64). */
extern uint64_t rng;
uint64_t draw(void);
static inline unsigned pick(unsigned n) { return n ? draw() % n : 0; }
static inline bool chance(unsigned percent) { return pick(100) < percent; }
#define ONE_OF(...) \
	((const long[]){__VA_ARGS__})[pick(sizeof((const long[]){__VA_ARGS__}) / sizeof(long))]

/* fill writes random bytes. */
void fill(void *p, size_t n);
/* hash is FNV-1a. */
uint64_t hash(uint64_t h, const void *p, size_t n);
#define HASH_EMPTY 14695981039346656037ull

/* The text that is being told. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void forget(void);
extern char text[];
extern size_t text_len;
/* done notes a step of the set-up, for who looks for the cause of a failure. */
void done(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern char steps[];
extern size_t steps_len;
void die(const char *what) __attribute__((noreturn));

/* This process. */
extern char name[64]; /* "0", "0.1", "0.1.2" */
extern int proc_fd;   /* of /proc, also after chroot */
extern int dir_fd;    /* of the directory for this seed's files */
extern char dir_path[];
#define FIRST_OWN_FD 900 /* the program's own descriptors are from here on */
int own_fd(int fd);   /* moves a descriptor there */
const char *file_name(const char *kind);

/* Kinds of state: each call makes some. */
void files_step(void);
void socket_step(void);
void memory_step(void);
void signal_step(void);
void block_signals(void);
void attribute_step(void);
void sysv_step(void);
void queue_step(void);
void names_step(void);
void stream_step(void);
void controlling_terminal(void); /* of a session that this process leads */
void own_credentials(void); /* of a thread */
void last_steps(void); /* of a child: what takes rights away */

/* A descriptor that exists beside the program's own, or -1. */
int some_fd(void);
/* Gives descriptors random numbers, duplicates and flags. */
int place(int fd);

/* Threads. */
void start_thread(void);
bool has_threads(void);
extern bool apart;  /* a thread has credentials of its own */
extern bool adopts; /* this process is, or was, a subreaper */
bool is_stack(unsigned long begin, unsigned long end); /* of a thread */
void tell_threads(bool drain);
void own_thread_steps(void); /* what a thread sets of itself */
void tell_thread(bool drain);

/* Processes. */
void start_child(int depth);
void tell_children(bool drain);
bool has_children(void);
void serve(void) __attribute__((noreturn));
void inherit(void); /* forgets what is not inherited by fork */
void settle(int depth);

/* Telling. */
void tell(bool drain);
void tell_process(void);
void tell_memory(bool drain);
void tell_descriptors(void);
void drain_descriptors(void);
void tell_signals(bool drain);
void tell_sysv(bool drain);
bool is_queue(int fd);
void tell_queue(int fd);
void drain_queue(int fd);
void tell_own_queue(bool drain);
int list(const char *path, int *out, int max); /* numbers in a directory of /proc */
ssize_t read_proc(const char *path, char *to, size_t max);
const char *canonical_link(int fd, const char *link);

/* A clock and timers: every expiry is in the middle of a span of 20,000 s: far from both ends, whatever the machine takes for its test. */
#define SPAN 20000
struct timespec;
void middle(struct timespec *relative, unsigned spans);
long span_of(const struct timespec *relative);
