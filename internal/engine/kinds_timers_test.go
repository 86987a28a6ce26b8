package engine_test

import "testing"

// timerfds are helpers for the programs of these tests.
const timerfds = `
class spec(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ('every_s', 'every_ns', 's', 'ns')]
def settime(fd, flags, value, interval=0):
    v = spec(int(interval), int(interval % 1 * 1e9), int(value), int(value % 1 * 1e9))
    call(libc.timerfd_settime, fd, flags, ctypes.byref(v), None)
def left(fd):
    v = spec(); call(libc.timerfd_gettime, fd, ctypes.byref(v)); return v.s + v.ns / 1e9
def ticks(fd):
    return int.from_bytes(os.read(fd, 8), 'little')
def info(fd, key, base=10):
    for l in open('/proc/self/fdinfo/%d' % fd):
        if l.startswith(key + ':'): return int(l.split(':')[1], base)
`

func TestKindsOfTimersAndSignals(t *testing.T) {
	playAll(t, []scene{
		{
			name: "timerfd",
			setup: timerfds + `
far, day, often, once, unset = [call(libc.timerfd_create, c, 0o4000) for c in (1, 0, 7, 1, 1)]
settime(far, 1, time.clock_gettime(time.CLOCK_MONOTONIC) + 1000)
settime(day, 3, time.time() + 2000)
began = time.clock_gettime(time.CLOCK_MONOTONIC)
settime(often, 0, 0.001, 0.010)
settime(once, 0, 0.001)
until(lambda: info(once, 'ticks') == 1 and info(often, 'ticks') >= 1)
e = select.epoll(); [e.register(f, select.EPOLLIN) for f in (far, day, often, once, unset)]
`,
			peek: `
now = time.clock_gettime(time.CLOCK_MONOTONIC)
assert abs(left(far) - (began + 1000 - now)) < 1, left(far)
assert 1900 < left(day) < 2000, left(day)
same((info(far, 'settime flags', 8), info(day, 'settime flags', 8), info(often, 'settime flags', 8)), (1, 3, 0))
same([info(f, 'clockid') for f in (far, day, often, once, unset)], [1, 0, 7, 1, 1])
same((left(once), left(unset), info(once, 'ticks')), (0, 0, 1))
same(sorted(f for f, _ in e.poll(1)), sorted([often, once]))
`,
			check: `
same(ticks(once), 1)
n = ticks(often); most = (time.clock_gettime(time.CLOCK_MONOTONIC) - began) / 0.010 + 3
assert 1 <= n <= most, (n, most)
until(lambda: e.poll(1) == [(often, select.EPOLLIN)], 'it goes on')
settime(far, 0, 0.001); until(lambda: far in dict(e.poll(1)))
same(ticks(far), 1)
`,
			spoil: `[settime(f, 0, 0) for f in (far, day, often, once)]`,
		},
		{
			name: "a read that waits for a timerfd",
			setup: timerfds + `
f = call(libc.timerfd_create, 1, 0)
settime(f, 0, 1.5)
done = []
th = threading.Thread(target=lambda: done.append(ticks(f))); th.start()
began = time.monotonic()
`,
			peek:  `same((done, th.is_alive()), ([], True)) if time.monotonic() < began + 1.4 else None`,
			check: `th.join(10); same(done, [1]); assert 1.4 < time.monotonic() - began, time.monotonic() - began`,
			spoil: `settime(f, 0, 0.001); th.join(); done.append(5)`,
		},
		{
			name: "signalfd",
			setup: `
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2, 40])
def signalfd(*sigs): return call(libc.signalfd, -1, ctypes.byref(ctypes.c_uint64(sum(1 << s - 1 for s in sigs))), 0o4000)
f, g = signalfd(signal.SIGUSR1, 40), signalfd(signal.SIGUSR2)
e = select.epoll(); e.register(f, select.EPOLLIN); e.register(g, select.EPOLLIN)
os.kill(os.getpid(), signal.SIGUSR1)
`,
			peek: `same(e.poll(1), [(f, select.EPOLLIN)])`,
			check: `
same(struct.unpack('I', os.read(f, 128)[:4])[0], signal.SIGUSR1)
os.kill(os.getpid(), 40); os.kill(os.getpid(), signal.SIGUSR2)
same(sorted(x for x, _ in e.poll(1)), sorted([f, g]))
same((struct.unpack('I', os.read(f, 128)[:4])[0], struct.unpack('I', os.read(g, 128)[:4])[0]), (40, signal.SIGUSR2))
`,
			spoil: `
while True:
    try: os.read(f, 128)
    except BlockingIOError: break
`,
		},
		{
			name: "files of /proc that only their owner may open, and of threads",
			setup: `
import threading
stop, tids = threading.Event(), []
def thread():
    f = [os.open('/proc/thread-self/' + n, os.O_RDONLY) for n in ('io', 'stat', 'comm')]
    tids.append((threading.get_native_id(), f)); stop.wait()
ts = [threading.Thread(target=thread, daemon=True) for _ in range(3)]
for t in ts: t.start()
until(lambda: len(tids) == 3, 'threads')
t0, (_, stat0, _) = tids[0]
other = os.open('/proc/%d/status' % t0, os.O_RDONLY)
own = [os.open('/proc/self/' + n, flags) for n, flags in (('io', 0), ('environ', 0), ('mem', os.O_RDWR), ('pagemap', 0), ('task/%d/io' % os.getpid(), 0), ('oom_score_adj', os.O_RDWR), ('comm', os.O_RDWR), ('fd', os.O_DIRECTORY), ('map_files', os.O_DIRECTORY))]
twice = os.dup(stat0); os.set_inheritable(stat0, True)
sysctls = [os.open('/proc/sys/' + n, os.O_RDONLY) for n in ('net/core/somaxconn', 'net/ipv4', 'kernel/shmmax', 'fs/mqueue/msg_max', 'user/max_user_namespaces', 'kernel/ostype')]
os.read(sysctls[0], 1); limit = open('/proc/sys/net/core/somaxconn').read()
kid = os.fork()
if not kid:
    while True: signal.pause()
`,
			peek: `
for tid, (io, stat, comm) in tids:
    same(int(os.pread(stat, 20, 0).split()[0]), tid); same(os.pread(io, 6, 0), b'rchar:')
    same(os.readlink('/proc/self/fd/%d' % comm), '/proc/%d/task/%d/comm' % (os.getpid(), tid))
same(os.pread(own[0], 6, 0) + os.pread(own[4], 6, 0), b'rchar:rchar:'); same(int(os.pread(twice, 20, 0).split()[0]), t0)
same((os.lseek(sysctls[0], 0, 1), os.pread(sysctls[0], 20, 0).decode(), os.readlink('/proc/self/fd/%d' % sysctls[1])), (1, limit, '/proc/sys/net/ipv4'))
same('ip_forward' in os.listdir(sysctls[1]), True); same(os.pread(sysctls[3], 1, 0) > b'0', True)
same(os.pread(other, 600, 0).split(b'Pid:')[1].split()[0], str(t0).encode())
same(os.readlink('/proc/%d/fd/%d' % (kid, stat0)), '/proc/%d/task/%d/stat' % (os.getpid(), t0))
word = ctypes.c_long(77); same(os.pread(own[2], 8, ctypes.addressof(word)), b'M' + bytes(7))
`,
			check: `
os.pwrite(own[2], b'N', ctypes.addressof(word)); same(word.value, 78)
os.lseek(stat0, 0, 0); os.read(stat0, 5); same(os.lseek(twice, 0, 1), 5)
os.write(own[6], b'named'); same(open('/proc/self/comm').read(), 'named\n'); os.write(own[5], b'500'); same(open('/proc/self/oom_score_adj').read(), '500\n')
same(str(own[7]) in os.listdir(own[7]), True); os.kill(kid, 9); same(os.waitpid(kid, 0), (kid, 9))
`,
			spoil: `
for _, f in tids:
    for fd in f: os.close(fd)
os.close(own[1])
`,
		},
		{
			name: "files of /proc of another process",
			setup: `
up, own = os.open('/proc/self/maps', os.O_RDONLY), os.open('/proc/self/fd', os.O_RDONLY | os.O_DIRECTORY); os.lseek(up, 10, 0)
kid = os.fork()
if not kid:
    while True: signal.pause()
os.close(up); kids = os.open('/proc/%d/limits' % kid, os.O_RDONLY); state = os.open('/proc/%d/stat' % kid, os.O_RDONLY)
`,
			peek: `
same([os.readlink('/proc/%d/fd/%d' % (kid, up)), os.readlink('/proc/self/fd/%d' % own)], ['/proc/%d/maps' % os.getpid(), '/proc/%d/fd' % os.getpid()])
same(os.pread(kids, 9, 0), b'Limit    '); same(int(os.pread(state, 100, 0).split()[0]), kid)
`,
			check: `same(sorted(int(n) for n in os.listdir(own))[:3], [0, 1, 2]); os.kill(kid, 9); same(os.waitpid(kid, 0), (kid, 9))`,
			spoil: `os.close(own); os.close(kids)`,
		},
		{
			name: "pidfd",
			setup: `
kid = child(lambda: time.sleep(1000)); zombie = child(lambda: os._exit(3)); gone = child(lambda: os._exit(4))
fds = [os.pidfd_open(p) for p in (kid, zombie, gone, os.getpid(), 1)]
os.waitpid(gone, 0); until(lambda: stat(zombie)['state'] == 'Z')
copy = os.dup(fds[0])
def ended(fd): p = select.poll(); p.register(fd, select.POLLIN); return bool(p.poll(0))
def send(fd, sig):
    try: signal.pidfd_send_signal(fd, sig)
    except ProcessLookupError: return 'none'
`,
			peek: `
same([ended(f) for f in fds], [False, True, True, False, False])
same([send(f, 0) for f in fds[:4]], [None, None, 'none', None])
same(os.waitid(os.P_PIDFD, fds[1], os.WEXITED | os.WNOWAIT | os.WNOHANG).si_status, 3)
`,
			check: `
send(copy, 9); same(os.waitid(os.P_PIDFD, fds[0], os.WEXITED).si_status, 9); same((ended(fds[0]), send(copy, 0)), (True, 'none'))
same(os.waitpid(zombie, 0)[0], zombie); same(send(fds[1], 0), 'none')
`,
			spoil: `
try: send(fds[0], 9); os.waitpid(kid, 0); os.waitpid(zombie, 0)
except ChildProcessError: pass
`,
		},
		{
			name: "memfd with seals and mappings, in two processes",
			setup: `
import fcntl
def make(name, seal=0, size=1 << 16):
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING); os.ftruncate(fd, size); os.pwrite(fd, b'begin', 0)
    return fd
a, b, c = make('open'), make('closed'), make('future')
shared, private = mmap.mmap(a, 1 << 16), mmap.mmap(a, 1 << 16, flags=mmap.MAP_PRIVATE)
private[100:104] = b'mine'
fcntl.fcntl(b, 1033, 0x2 | 0x4 | 0x8); ro = mmap.mmap(b, 1 << 16, prot=mmap.PROT_READ)
before = mmap.mmap(c, 1 << 16); fcntl.fcntl(c, 1033, 0x10)
unowned = make('unowned'); alone = mmap.mmap(unowned, 1 << 16); alone[:4] = b'alon'; os.close(unowned)
reopened = os.open('/proc/self/fd/%d' % a, os.O_RDONLY)
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    while True:
        n = int.from_bytes(os.read(r, 1), 'little')
        if n == 0: os._exit(0)
        shared[n] = n; alone[n] = n; os.write(w2, os.pread(a, 1, n + 1))
k = child(kid)
def exchange(n):
    os.pwrite(a, bytes([n + 7]), n + 1); os.write(w, bytes([n])); same(os.read(r2, 1), bytes([n + 7])); same((shared[n], alone[n]), (n, n))
exchange(20)
`,
			peek: `
same((bytes(shared[:5]), shared[20], shared[21], bytes(private[100:104])), (b'begin', 20, 27, b'mine'))
same((bytes(ro[:5]), bytes(before[:5]), bytes(alone[:4]), alone[20]), (b'begin', b'begin', b'alon', 20))
same([fcntl.fcntl(f, 1034) for f in (a, b, c)], [0, 0xe, 0x10])
same(os.readlink('/proc/self/fd/%d' % b), '/memfd:closed (deleted)')
same(os.fstat(a).st_ino == os.fstat(reopened).st_ino, True)
`,
			check: `
exchange(30); shared[200] = 9; same((os.pread(reopened, 1, 200), os.pread(a, 1, 200)), (b'\x09', b'\x09'))
for f in (b, c):
    try: os.pwrite(f, b'x', 0)
    except PermissionError: pass
    else: raise Exception('a sealed memfd was written')
before[0] = 65; same(os.pread(c, 5, 0), b'Aegin')
same(bytes(private[100:104]), b'mine')
os.write(w, b'\0'); os.waitpid(k, 0)
`,
			spoil: `shared[:5] = b'spoil'; private[100:104] = b'lost'; before[:5] = b'gone!'; alone[:4] = b'....'`,
		},
	})
}

func TestKindsOfPOSIXTimers(t *testing.T) {
	playAll(t, []scene{{
		name: "POSIX timers, with numbers, of all clocks",
		setup: `
class event(ctypes.Structure):
    _fields_ = [('value', ctypes.c_long), ('signo', ctypes.c_int), ('notify', ctypes.c_int), ('tid', ctypes.c_int), ('_', ctypes.c_char * 44)]
class spec(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ('every_s', 'every_ns', 's', 'ns')]
def create(clock, notify=0, sig=46, value=0, tid=0):
    e, i = event(value, sig, notify, tid), ctypes.c_int()
    call(libc.syscall, 222, clock, ctypes.byref(e), ctypes.byref(i)); return i.value
def settime(i, value, interval=0):
    v = spec(int(interval), int(interval % 1 * 1e9), int(value), int(value % 1 * 1e9)); call(libc.syscall, 223, i, 0, ctypes.byref(v), None)
def left(i): v = spec(); call(libc.syscall, 224, i, ctypes.byref(v)); return v.s + v.ns / 1e9
def delete(i): call(libc.syscall, 226, i)
def wait(sig, patience=5):
    i = signal.sigtimedwait([sig], patience); return i and (i.si_signo, i.si_code)
sigs = list(range(40, 48)); signal.pthread_sigmask(signal.SIG_BLOCK, sigs)
for _ in range(70): delete(create(1))
far = create(1, 0, 40, 0x123456789); settime(far, 1000)
often = create(7, 0, 41); settime(often, 0.001, 0.02)
silent = create(0, 1); settime(silent, 2000, 3)
unset = create(1, 0, 42)
cpu = create(2, 0, 43); settime(cpu, 500)
me = threading.get_native_id(); named = [create(~me << 3 | 6, 4, 47, 9, me), create(~os.getpid() << 3 | 2, 0, 47)]
for i in named: settime(i, 700)
delete(create(1))
ready, go = threading.Event(), threading.Event()
def other():
    global own, tid
    tid = threading.get_native_id(); signal.pthread_sigmask(signal.SIG_BLOCK, sigs)
    own = create(3, 4, 44, 7, tid); settime(own, 600)
    mine = create(1, 4, 45, 8, tid); ready.set(); go.wait(); settime(mine, 0.001); got.append(wait(45)); time.sleep(0.1)
got = []; th = threading.Thread(target=other); th.start(); ready.wait()
def facts(): return open('/proc/self/timers').read()
was = facts(); began = time.monotonic()
until(lambda: 41 in signal.sigpending())
`,
		peek: `
same(facts(), was); now = time.monotonic() - began
assert abs(left(far) - (1000 - now)) < 2, left(far)
assert 1900 < left(silent) < 2000 and left(unset) == 0 and 400 < left(cpu) <= 500 and left(own) > 500, (left(silent), left(cpu), left(own))
assert all(600 < left(i) <= 700 for i in named), [left(i) for i in named]
same(41 in signal.sigpending(), True)
`,
		check: `
for _ in range(3): same(wait(41), (41, -2))
settime(far, 0.001); same(wait(40), (40, -2)); settime(unset, 0.001); same(wait(42), (42, -2))
go.set(); th.join(); same(got, [(45, -2)])
new = create(1); assert new not in (far, often, silent, unset, cpu, own), new
`,
		spoil: `[delete(i) for i in [far, often, silent, unset, cpu] + named]; create(1, 0, 46)`,
	}})
}
