package engine_test

import (
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// What a program may have one of, it may have hundreds of: more than one message,
// batch, or page of a list holds.
func TestKindsOfMany(t *testing.T) {
	playAll(t, []scene{
		{
			name: "thousands of pipes with something in them",
			setup: many + `
ps = [os.pipe() for _ in range(2500)]
for i, (r, w) in enumerate(ps): os.write(w, b'%d' % i)
`,
			peek:  `same([len(ready(r)) for r, _ in ps], [1] * 2500)`,
			check: `same([os.read(r, 9) for r, _ in ps], [b'%d' % i for i in range(2500)]); [os.write(w, b'x') for _, w in ps]; same([os.read(r, 9) for r, _ in ps], [b'x'] * 2500)`,
			spoil: `for r, w in ps: os.close(w)`,
		},
		{
			name: "hundreds of unix socket pairs with descriptors on their way",
			setup: many + `
ps = [socket.socketpair() for _ in range(400)]
for i, (a, b) in enumerate(ps):
    r, w = os.pipe(); os.write(w, b'%d' % i); socket.send_fds(a, [b'm%d' % i], [r]); os.close(r); os.close(w)
`,
			peek: `same([len(ready(b)) for _, b in ps], [1] * 400)`,
			check: `
for i, (a, b) in enumerate(ps):
    m, fs, _, _ = socket.recv_fds(b, 99, 4); same((m, os.read(fs[0], 9)), (b'm%d' % i, b'%d' % i)); os.close(fs[0])
    b.send(b'back'); same(a.recv(9), b'back')
`,
			spoil: `for a, b in ps: a.close()`,
		},
		{
			name: "hundreds of connections that wait, and of those that were accepted",
			setup: many + `
kinds = [(socket.AF_UNIX, '\0many'), (socket.AF_INET, ('127.0.0.1', 7000)), (socket.AF_INET6, ('::1', 7001))]
ls, cs, acs = [], [], []
for f, a in kinds:
    l = socket.socket(f); l.bind(a); l.listen(500); ls.append(l)
    for i in range(300):
        c = socket.socket(f); c.connect(a); cs.append(c)
        if i % 2 == 0: acs.append(l.accept()[0])
        c.send(b'%d' % i)
`,
			peek: `same([len(ready(l)) for l in ls], [1] * 3); same([len(ready(c)) for c in cs], [0] * 900)`,
			check: `
for k, l in enumerate(ls):
    for i in range(150): acs.append(l.accept()[0])
for a in acs: a.send(a.recv(9))
for i, c in enumerate(cs): same(c.recv(9), b'%d' % (i % 300))
`,
			spoil: `for c in cs: c.close()`,
		},
		{
			name: "hundreds of datagram sockets with unread messages",
			setup: many + `
us = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(300)]
xs = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(300)]
for i, u in enumerate(us): u.bind(('127.0.0.1', 8000 + i))
for i, x in enumerate(xs): x.bind('\0d%d' % i)
for i in range(300):
    for j in range(3): us[i].sendto(b'%d' % j, ('127.0.0.1', 8000 + (i + 1) % 300)); xs[i].sendto(b'%d' % j, '\0d%d' % ((i + 1) % 300))
`,
			peek: `same([len(ready(s)) for s in us + xs], [1] * 600)`,
			check: `
for i in range(300):
    for j in range(3): same((us[i].recvfrom(9), xs[i].recvfrom(9)), ((b'%d' % j, ('127.0.0.1', 8000 + (i - 1) % 300)), (b'%d' % j, b'\0d%d' % ((i - 1) % 300))))
`,
			spoil: `for s in us + xs: s.close()`,
		},
		{
			name: "hundreds of descriptors of each kind without a file",
			setup: many + `
es = [os.eventfd(i) for i in range(300)]
ts = [call(libc.timerfd_create, 1, 0) for _ in range(300)]
sig = (ctypes.c_ulong * 16)(1 << 33)
ss = [call(libc.signalfd, -1, sig, 0) for _ in range(300)]
ms = [os.memfd_create('m%d' % i) for i in range(300)]
for i, m in enumerate(ms): os.write(m, b'%d' % i)
ks = [child(lambda: signal.pause()) for _ in range(3)]
ds = [os.pidfd_open(ks[i % 3]) for i in range(300)]
ep = [select.epoll() for _ in range(300)]
for p in ep:
    for f in es[:20]: p.register(f, select.EPOLLIN)
os.mkdir('/root/w'); ino = call(libc.inotify_init1, 0o4000)
for i in range(500): os.mkdir('/root/w/%d' % i); same(call(libc.inotify_add_watch, ino, b'/root/w/%d' % i, 0x100), i + 1)
`,
			peek: `same([len(p.poll(0)) for p in ep], [19] * 300); same([os.pread(m, 9, 0) for m in ms], [b'%d' % i for i in range(300)])`,
			check: `
same([os.eventfd_read(e) for e in es[1:]], list(range(1, 300)))
for d in ds[:3]: signal.pidfd_send_signal(d, 9)
for d in ds: p = select.poll(); p.register(d, select.POLLIN); same(len(p.poll(10000)), 1)
for i in range(500): open('/root/w/%d/x' % i, 'w').close()
same(len(os.read(ino, 1 << 20)), 500 * 32)
`,
			spoil: `for m in ms: os.ftruncate(m, 0)`,
		},
		{
			name: "hundreds of locks, deleted files and directories",
			setup: many + `
import fcntl
os.mkdir('/root/l'); fs = []
for i in range(400):
    f = open('/root/l/%d' % i, 'w+'); f.write('%d' % i); f.flush(); fs.append(f)
    if i % 2: fcntl.lockf(f, fcntl.LOCK_EX, 1, i)
    else: fcntl.flock(f, fcntl.LOCK_EX)
    if i % 4 == 0: os.unlink('/root/l/%d' % i)
one = open('/root/one', 'w+')
for i in range(0, 1000, 2): fcntl.lockf(one, fcntl.LOCK_EX, 1, i)
ds = [os.open('/root/l', os.O_RDONLY) for _ in range(300)]
def locked():
    n = os.getpid(); r, w = os.pipe()
    def kid():
        free = 0
        for i in range(1000):
            try: fcntl.lockf(one, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, i); free += 1
            except OSError: pass
        os.write(w, b'%d' % free); os._exit(0)
    k = child(kid); got = int(os.read(r, 9)); os.waitpid(k, 0); os.close(r); os.close(w); return 1000 - got
`,
			peek:  `same([f.seek(0) or f.read() for f in fs], ['%d' % i for i in range(400)]); same(locked(), 500); same({len(os.listdir(d)) for d in ds}, {300})`,
			check: `fcntl.lockf(one, fcntl.LOCK_UN); same(locked(), 0)`,
			spoil: `for f in fs: f.close()`,
		},
		{
			name: "hundreds of mappings of files, deleted ones and memory",
			setup: many + `
ms = []
for i in range(600):
    f = os.memfd_create('x') if i % 3 == 0 else os.open('/root/m%d' % i, os.O_RDWR | os.O_CREAT)
    os.ftruncate(f, 8192)
    ms.append(mmap.mmap(f, 8192, flags=mmap.MAP_PRIVATE if i % 2 else mmap.MAP_SHARED)); ms[-1][5000:5004] = b'%04d' % i; os.close(f)
    if i % 3 == 1: os.unlink('/root/m%d' % i)
`,
			peek:  `same([m[5000:5004] for m in ms], [b'%04d' % i for i in range(600)])`,
			check: `for m in ms: m[0] = 1`,
			spoil: `for m in ms: m[5000:5004] = b'gone'`,
		},
		{
			name: "hundreds of objects of System V and POSIX",
			setup: many + `
libc.shmat.restype = ctypes.c_void_p; libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
ids = [call(libc.shmget, 0, 4096, 0o1600) for _ in range(300)]
ats = [libc.shmat(i, None, 0) for i in ids]
for n, a in enumerate(ats): ctypes.memmove(a, b'%04d' % n, 4)
qs = [call(libc.msgget, 0, 0o1600) for _ in range(300)]
class M(ctypes.Structure): _fields_ = [('type', ctypes.c_long), ('text', ctypes.c_char * 4)]
for n, q in enumerate(qs): call(libc.msgsnd, q, ctypes.byref(M(1, b'%04d' % n)), 4, 0)
ses = [call(libc.semget, 0, 3, 0o1600) for _ in range(300)]
for n, s in enumerate(ses): call(libc.semctl, s, 1, 16, n)
`,
			peek: `same([ctypes.string_at(a, 4) for a in ats], [b'%04d' % n for n in range(300)]); same([call(libc.semctl, s, 1, 12) for s in ses], list(range(300)))`,
			check: `
for n, q in enumerate(qs): m = M(); call(libc.msgrcv, q, ctypes.byref(m), 4, 0, 0); same(m.text, b'%04d' % n)
`,
			spoil: `for a in ats: ctypes.memmove(a, b'gone', 4)`,
		},
		{
			name: "hundreds of threads, timers and processes",
			setup: many + `
stop = threading.Event(); said = []
th = [threading.Thread(target=lambda i=i: (stop.wait(), said.append(i)), daemon=True) for i in range(64)]
for x in th: x.start()
class ev(ctypes.Structure): _fields_ = [('value', ctypes.c_long), ('signo', ctypes.c_int), ('notify', ctypes.c_int), ('pad', ctypes.c_int * 12)]
tids = []
for i in range(500):
    e = ev(0, 34, 1); t = ctypes.c_int(); call(libc.syscall, 222, 1, ctypes.byref(e), ctypes.byref(t)); tids.append(t.value)
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    os.read(r, 1); os.write(w2, b'x'); os._exit(7)
ks = [child(kid) for _ in range(40)]
`,
			peek: `same(tids, list(range(tids[0], tids[0] + 500))); same(sum(x.is_alive() for x in th), 64); until(lambda: all(stat(k)['state'] == 'S' for k in ks))`,
			check: `
stop.set(); [x.join(10) for x in th]; same(sorted(said), list(range(64)))
os.write(w, b'x' * 40); n = 0
while n < 40: n += len(os.read(r2, 40))
same([os.waitpid(k, 0)[1] for k in ks], [7 << 8] * 40)
for t in tids: call(libc.syscall, 226, t)
`,
			spoil: `
import contextlib
for k in ks:
    with contextlib.suppress(ProcessLookupError): os.kill(k, 9)
`,
		},
	})
}

// The processes of one session may not have more mappings together than one process
// may have.
func TestKindsOfTooMany(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("setup", `
ms = [mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | (mmap.PROT_WRITE if i % 2 else 0)) for i in range(1000)]
ks = [child(signal.pause) for _ in range(70)]
`)
	_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
	if !fault.Is(err, fault.Uncapturable) || !strings.Contains(err.Error(), "in one session have more mappings together") || !strings.Contains(fault.HintOf(err), "vm.max_map_count") {
		t.Fatalf("got %v (%s)", err, fault.HintOf(err))
	}
	x.must("some end", `for k in ks[:20]: os.kill(k, 9); os.waitpid(k, 0)`)
	last := h.checkpoint(box)
	_, ss := h.rollback(box, last.ID)
	x = ss[x.id]
	x.must("rolled back", `
for k in ks[20:]: os.kill(k, 9); same(os.waitpid(k, 0), (k, 9))
`)
}

// many lets a program have as many descriptors as it needs, and tells what is ready.
const many = `
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
def ready(f):
    p = select.poll(); p.register(f, select.POLLIN); return p.poll(0)
`
