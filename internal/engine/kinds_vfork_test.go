package engine_test

import (
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// A process that waits for its vforked child cannot be stopped. A checkpoint has the
// child go on until it executes a program, and keeps that. If it takes its time,
// the checkpoint gives up; everything goes on, the process too as soon as it can.
func TestKindsOfVfork(t *testing.T) {
	h := newHost(t)
	box := h.create()
	h.put(box, "/root/vfork", build(t, `
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static int kept = 7; // a program that took its parent's memory for its own would answer with it
static volatile sig_atomic_t got;
static void on(int s) { got++; }
int main(int n, char **a) {
	char line[100];
	if (n > 1) {
		kept = 8;
		for (int i = 0; scanf("%99s", line) == 1; i++) { printf("= child %d %d\n", kept, i); fflush(stdout); }
		return 0;
	}
	signal(SIGUSR1, on);
	printf("= ready\n"); fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		struct timespec ts = {0, atol(line + 1) * 1000000L};
		pid_t p = vfork();
		if (p == 0) {
			if (write(1, "= inside\n", 9) != 9) _exit(1);
			if (line[1] == 'w') { char c; int fd = open("/tmp/go", O_RDONLY); if (read(fd, &c, 1) != 1) _exit(2); } // until it is told
			nanosleep(&ts, 0);
			if (line[0] == 'n') { // one within another
				if (vfork() == 0) { nanosleep(&ts, 0); kill(getppid(), SIGUSR1); _exit(4); }
				_exit(5);
			}
			if (line[0] == 'e') { execl("/root/vfork", "vfork", "child", NULL); _exit(9); }
			_exit(6);
		}
		kept++;
		int st = 0;
		if (line[0] == 'e') printf("= outside %d\n", p > 0);
		else { waitpid(p, &st, 0); printf("= outside %d\n", WEXITSTATUS(st)); }
		fflush(stdout);
		if (line[0] == 'e') waitpid(p, 0, 0);
	}
}
`))
	x, y := h.exec(box, false, "/root/vfork"), h.obedient(box)
	x.until("= ready")
	h.checkpoint(box)
	for _, how := range []string{"q5", "q20", "n10"} {
		x.ask(how, "= inside")
		h.checkpoint(box)
		if got, want := x.until("= outside"), map[byte]string{'q': "6", 'n': "5"}[how[0]]; !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s", how, got)
		}
	}
	y.must("make a FIFO", "os.mkfifo('/tmp/go')")
	tell := func() {
		t.Helper()
		y.must("tell it", "f = open('/tmp/go', 'w'); f.write('x'); f.close()")
	}
	x.ask("qw", "= inside")
	_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
	if !fault.Is(err, fault.Uncapturable) || !strings.Contains(err.Error(), "(vfork)") {
		t.Fatalf("got %v", err)
	}
	tell()
	x.until("= outside") // it goes on without a checkpoint
	c := h.checkpoint(box)
	_, ss := h.rollback(box, c.ID)
	x, y = ss[x.id], ss[y.id]
	// A stop meets it before it is a program of its own, and gives up.
	x.ask("ew", "= inside")
	_, err = h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
	if !fault.Is(err, fault.Uncapturable) {
		t.Fatalf("got %v", err)
	}
	tell()
	x.until("= outside")
	x.ask("a", "= child 8 0")
	c = h.checkpoint(box)
	_, ss = h.rollback(box, c.ID)
	x = ss[x.id]
	x.ask("b", "= child 8 1")
	x.in.Close()
}

// Programs of many threads that execute themselves again and again, by the main thread
// or by another, which takes the main one's number then: no checkpoint waits for ever for
// what was killed, or leaves somebody traced. On a busy machine one may be refused, as
// an execve waits until all other threads have ended.
func TestKindsOfExecves(t *testing.T) {
	program := build(t, `
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *by, n[20];
static void *spin(void *a) { for (;;) getppid(); }
static void *again(void *a) { usleep(2000 + getpid() * 7919 % 3000 + atoi(n) * 137 % 5000); execl("/root/execve", "execve", by, n, NULL); _exit(1); }
int main(int c, char **v) {
	pthread_t p;
	by = v[1];
	snprintf(n, sizeof n, "%d", atoi(v[2]) + 1);
	if (atoi(n) % 10 == 0) { printf("= %s\n", n); fflush(stdout); }
	for (int i = 0; i < 4; i++) pthread_create(&p, 0, spin, 0);
	if (*by == 'm') again(0);
	pthread_create(&p, 0, again, 0);
	pause();
}
`)
	for _, c := range []struct{ name, by, between string }{
		{"main", "main", ""}, {"other", "other", ""}, {"other, while a stop looks", "other", "delay:4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			by := c.by
			h := newHost(t)
			box := h.create()
			h.put(box, "/root/execve", program)
			x, y := h.exec(box, false, "/root/execve", by, "0"), h.exec(box, false, "/root/execve", by, "0")
			x.until("= 10")
			if c.between != "" {
				failpoint.Enable(t, "process.stop.listed", c.between)
			}
			var last string
			for range 20 {
				id := h.id("cp")
				k, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: id})
				switch {
				case err == nil:
					if last = id; k.Processes != 2 {
						t.Errorf("%d of 2 processes are in a checkpoint", k.Processes)
					}
				case !fault.Is(err, fault.Uncapturable) || !strings.Contains(err.Error(), "does not stop"):
					t.Error(err)
				}
			}
			for _, s := range []*talk{x, y} {
				for range 2 { // each goes on
					s.until("= ")
				}
			}
			realtime(t)
			if last == "" {
				return
			}
			_, ss := h.rollback(box, last)
			for _, s := range []*talk{x, y} {
				ss[s.id].until("= ")
			}
			realtime(t)
		})
	}
}
