package engine_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// What the kernel counts for all sandboxes together, one of them cannot use up.
func TestKindsOfWhatSandboxesHaveTogether(t *testing.T) {
	h := newHost(t)
	const setup = `
class Value(ctypes.Union): _fields_ = [('i', ctypes.c_int), ('p', ctypes.c_void_p)]
class Attr(ctypes.Structure): _fields_ = [('flags', ctypes.c_long), ('most', ctypes.c_long), ('size', ctypes.c_long), ('now', ctypes.c_long), ('pad', ctypes.c_long * 4)]
libc.sigqueue.argtypes = [ctypes.c_int, ctypes.c_int, Value]
signal.pthread_sigmask(signal.SIG_BLOCK, [42])
def queued(most):
    for n in range(most):
        if libc.sigqueue(os.getpid(), 42, Value(i=n)): return n
    return most
def queues(most):
    for n in range(most):
        if libc.mq_open(b'/q%d' % n, 0o102, 0o600, ctypes.byref(Attr(0, 10, 8192, 0))) < 0: return n
    return most
`
	greedy, other := h.obedient(h.create()), h.create()
	greedy.must("signals", setup+`n = queued(100000); same((n, 1000 < n < 20000), (n, True))`)
	x := h.obedient(other)
	x.must("signals", setup+`same(queued(1000), 1000)`)
	var l unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_MSGQUEUE, &l))
	if l.Max < confine.MessageQueueBytes {
		return // root may not raise limits here (CAP_SYS_RESOURCE), so neither may we
	}
	greedy.must("queues", `n = queues(1000); same((n, 3 < n < 100), (n, True))`)
	x.must("queues", `same(queues(7), 7)`)
	c := h.checkpoint(other)
	for range 3 {
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: other, Checkpoint: c.ID}, Sandboxes: []string{h.id("sb")}, Hostnames: []string{"copy"},
		}))
		check(t, err)
	}
}
