package engine_test

import (
	"strings"
	"testing"
)

// Some of what the kernel gives is counted for a user, and for whom the user
// namespace belongs to: queued signals, message queues, inotify instances. A sandbox
// that takes all it can of them takes nothing from its neighbours, and can be rolled
// back and forked while it holds them.
func TestCountersAreASandboxsOwn(t *testing.T) {
	h := newHost(t)
	const greedy = `
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
class attr(ctypes.Structure): _fields_ = [(n, ctypes.c_long) for n in ("flags", "maxmsg", "msgsize", "curmsgs")] + [("pad", ctypes.c_long * 4)]
def signals():
	signal.pthread_sigmask(signal.SIG_BLOCK, [40])
	n = 0
	while libc.sigqueue(os.getpid(), 40, None) == 0: n += 1
	return n
def watches():
	n = 0
	while n < 500 and libc.inotify_init1(0o2000000) >= 0: n += 1
	return n
def queues():
	n = 0
	while True:
		fd = libc.mq_open(b"/q%d" % n, os.O_RDWR | os.O_CREAT, 0o600, ctypes.byref(attr(0, 10, 4096)))
		if fd < 0: return n
		n += 1
`
	first, second := h.create(), h.create()
	a, b := h.obedient(first), h.obedient(second)
	for _, x := range []*talk{a, b} {
		x.must("define", greedy)
	}
	take := func(x *talk) string { return x.must("take", "(signals(), queues(), watches())") }
	took := take(a)
	if got := take(b); got != took || strings.HasPrefix(took, "(0") || strings.Contains(took, " 0") {
		t.Errorf("the first sandbox took %s, then the second %s", took, got)
	}
	// More are not captured: they take too long.
	a.must("let it receive most", "for _ in range(13000): signal.sigtimedwait([40], 0)")
	held := func(x *talk) string {
		return x.must("look", `([l.split()[1] for l in open("/proc/self/status") if l.startswith("SigQ")], len(os.listdir("/dev/mqueue")), os.stat("/dev/mqueue").st_uid, libc.inotify_init1(0o2000000) < 0)`)
	}
	was := held(a)
	cp := h.checkpoint(first)
	_, ss := h.rollback(first, cp.ID)
	if got := held(ss[a.id]); got != was {
		t.Errorf("after a rollback it holds %s, and had %s", got, was)
	}
	copied := h.fork(first, cp.ID, 1)[0]
	if got := held(h.adopt(copied, a.id)); got != was {
		t.Errorf("a copy holds %s, and the first had %s", got, was)
	}
}
