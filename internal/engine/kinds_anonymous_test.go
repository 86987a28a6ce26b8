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

func TestKindsOfWatches(t *testing.T) {
	playAll(t, []scene{{
		name: "inotify",
		setup: `
os.makedirs('/root/d/sub'); open('/root/d/file', 'w').write('x'); open('/dev/shm/f', 'w').close()
f = call(libc.inotify_init1, 0o4000)
M = 0x2 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 # modify, moved, created, deleted, itself deleted
def add(p, mask=M): return call(libc.inotify_add_watch, f, p.encode(), mask)
gone = add('/usr/lib')
wds = [add(p) for p in ('/root/d', '/root/d/sub', '/root/d/file', '/usr/bin', '/etc/passwd', '/', '/dev/shm')]; once = add('/etc', M | 0x80000000 | 0x04000000)
call(libc.inotify_rm_watch, f, gone)
for i in range(300): os.makedirs('/root/many/%d' % i)
many = {add('/root/many/%d' % i): i for i in range(300)}
for wd in list(many)[::3]: call(libc.inotify_rm_watch, f, wd); del many[wd]
def events():
    try: b = os.read(f, 65536)
    except BlockingIOError: return []
    out = []
    while b:
        wd, mask, cookie, n = struct.unpack('iIII', b[:16]); out.append((wd, mask, b[16:16 + n].rstrip(b'\0').decode())); b = b[16 + n:]
    return out
events()
e = select.epoll(); e.register(f, select.EPOLLIN)
def facts(): return sorted(l.split(' fhandle')[0].split(' sdev')[0] + l.split(' mask')[1].split(' f')[0] for l in open('/proc/self/fdinfo/%d' % f) if l.startswith('inotify'))
was = facts()
r, w = os.pipe(); r2, w2 = os.pipe()
status = os.open('/proc/self/status', os.O_RDONLY)
def kid():
    os.read(r, 1); os.write(w2, repr(events()).encode() + os.pread(status, 5, 0)); time.sleep(1000)
k = child(kid)
`,
		peek: `same(facts(), was); same((events(), e.poll(0)), ([], [])); same(os.pread(status, 5, 0), b'Name:')`,
		check: `
open('/root/d/sub/new', 'w').close(); same(events(), [(wds[1], 0x100, 'new')])
open('/root/d/file', 'a').write('y'); same(events(), [(wds[0], 2, 'file'), (wds[2], 2, '')])
os.mkdir('/usr/bin/made'); same(events(), [(wds[3], 0x40000100, 'made')])
open('/etc/passwd', 'a').write('\n'); same(set(events()), {(once, 2, 'passwd'), (once, 0x8000, ''), (wds[4], 2, '')})
os.rename('/root/d/sub/new', '/rootfile'); same(sorted((w, m) for w, m, _ in events()), sorted([(wds[1], 0x40), (wds[5], 0x80)]))
os.unlink('/dev/shm/f'); same(events(), [(wds[6], 0x200, 'f')])
for wd, i in many.items(): open('/root/many/%d/x' % i, 'w').close(); same(events(), [(wd, 0x100, 'x')])
n = add('/usr/lib'); assert n not in wds + [once] + list(many), n
open('/root/d/x', 'w').close(); same(e.poll(0), [(f, 1)])
os.write(w, b'!'); same(os.read(r2, 1000).decode(), repr([(wds[0], 0x100, 'x')]) + 'Name:')
`,
		spoil: `
os.kill(k, 9); os.waitpid(k, 0); import shutil; shutil.rmtree('/root/d'); events(); os.close(f)
`,
	}, {
		// Renamings get other cookies, the same in both halves.
		name: "inotify with unread events",
		setup: `
import fcntl, shutil
for d in ('a', 'b', 'a/sub'): os.makedirs('/root/e/' + d)
for p in ('a/f', 'doomed', 'once'): open('/root/e/' + p, 'w').write('x')
f = call(libc.inotify_init1, 0o4000); ALL = 0xfff
said = []; signal.signal(signal.SIGIO, lambda *a: said.append(1))
fcntl.fcntl(f, fcntl.F_SETOWN, os.getpid())
def add(p, mask=ALL): return call(libc.inotify_add_watch, f, b'/root/e/' + p.encode(), mask)
a, b, sub, af, doomed = [add(p) for p in ('a', 'b', 'a/sub', 'a/f', 'doomed')]; once = add('once', 2 | 0x80000000); shm = call(libc.inotify_add_watch, f, b'/dev/shm', 0x100)
def events():
    try: x = os.read(f, 65536)
    except BlockingIOError: return []
    out = []; seen = {0: 0}
    while x:
        wd, mask, cookie, n = struct.unpack('iIII', x[:16]); out.append((wd, mask, seen.setdefault(cookie, len(seen)), x[16:16 + n].rstrip(b'\0'))); x = x[16 + n:]
    return out
def happen():
    open('/root/e/a/new', 'w').write('x'); os.rename('/root/e/a/new', '/root/e/b/' + 250 * 'n'); os.rename('/root/e/b/' + 250 * 'n', '/root/e/out'); os.rename('/root/e/out', '/root/e/a/in')
    os.rename('/root/e/a/sub', '/root/e/b/sub'); os.rename('/root/e/b/sub', '/root/e/a/sub'); os.remove('/root/e/a/in'); os.chmod('/root/e/a/f', 0o600); os.chmod('/root/e/b', 0o700)
    open('/root/e/a/f').read(); os.listdir('/root/e/b'); open('/dev/shm/new', 'w').close()
happen(); want = events(); assert len(want) > 25, want
os.remove('/dev/shm/new'); events()
happen(); open('/root/e/once', 'w').write('y'); os.remove('/root/e/doomed')
want += [(once, 2, 0, b''), (once, 0x8000, 0, b''), (doomed, 4, 0, b''), (doomed, 0x400, 0, b''), (doomed, 0x8000, 0, b'')]
size = fcntl.ioctl(f, 0x541B, b'1234')
fcntl.fcntl(f, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
e = select.epoll(); e.register(f, select.EPOLLIN)
def facts(): return [l.split(' fhandle')[0].split(' sdev')[0] + l.split(' mask')[1].split(' f')[0] for l in open('/proc/self/fdinfo/%d' % f) if l.startswith('inotify')]
was = facts(); same(len(was), 5)
`,
		peek: `same(facts(), was); same(fcntl.ioctl(f, 0x541B, b'1234'), size); same(e.poll(0), [(f, 1)]); same(said, []); same(fcntl.fcntl(f, fcntl.F_GETFL) & os.O_ASYNC, os.O_ASYNC)`,
		check: `
same(events(), want); same(events(), [])
open('/root/e/b/later', 'w').close(); same(events(), [(b, 0x100, 0, b'later'), (b, 0x20, 0, b'later'), (b, 8, 0, b'later')]); os.remove('/root/e/b/later'); events(); assert said
os.rename('/root/e/a/sub', '/root/e/sub'); same([(w, m) for w, m, _, _ in events()], [(a, 0x40000040), (sub, 0x800)]); os.rename('/root/e/sub', '/root/e/a/sub'); events()
same(add('.'), shm + 1)
`,
		spoil: `assert events() in (want, []); events(); shutil.rmtree('/root/e'); os.remove('/dev/shm/new'); os.close(f)`,
	}})
}

func TestKindsOfLocks(t *testing.T) {
	playAll(t, []scene{
		{
			name: "locks of all kinds, with waiters",
			setup: `
import fcntl
def ofd(fd, typ, start, n, cmd=37): return fcntl.fcntl(fd, cmd, struct.pack('hhlli4x', typ, 0, start, n, 0))
names = ['/root/l-' + n for n in ('flock', 'posix', 'ofd', 'lease')]
fs = [os.open(n, os.O_RDWR | os.O_CREAT) for n in names]
fcntl.flock(fs[0], fcntl.LOCK_EX); fcntl.lockf(fs[1], fcntl.LOCK_EX, 10, 100); ofd(fs[2], 1, 0, 5); fcntl.fcntl(fs[3], 1024, fcntl.F_WRLCK)
got, gotw = os.pipe()
def wait(i, take):
    f = os.open(names[i], os.O_RDWR); take(f); os.write(gotw, b'%d' % i); time.sleep(1000)
kids = [child(lambda: wait(0, lambda f: fcntl.flock(f, fcntl.LOCK_EX))), child(lambda: wait(1, lambda f: fcntl.lockf(f, fcntl.LOCK_SH, 5, 105))), child(lambda: wait(2, lambda f: ofd(f, 1, 3, 1, 38)))]
calls = ['73', '72', '72']
until(lambda: [open('/proc/%d/syscall' % k).read().split()[0] for k in kids] == calls, 'waiting')
def held(i):
    f = os.open(names[i], os.O_RDWR | os.O_NONBLOCK) if i < 3 else -1
    try:
        if i == 0: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if i == 2: ofd(f, 1, 0, 1)
        if i == 3: return fcntl.fcntl(fs[3], 1025) == fcntl.F_WRLCK
    except BlockingIOError: return True
    finally:
        if f >= 0: os.close(f)
def posix(): # seen from another process; closing the file here would release it
    r, w = os.pipe()
    def ask():
        f = os.open(names[1], os.O_RDWR); v = fcntl.fcntl(f, 5, struct.pack('hhlli4x', 1, 0, 0, 0, 0)); os.write(w, v); os._exit(0)
    k = child(ask); os.waitpid(k, 0); v = struct.unpack('hhlli4x', os.read(r, 100)); os.close(r); os.close(w); return v
`,
			peek: `
same([held(0), held(2), held(3)], [True] * 3); same(posix(), (1, 0, 100, 10, os.getpid()))
same(select.select([got], [], [], 0)[0], [])
`,
			check: `
fcntl.flock(fs[0], fcntl.LOCK_UN); same(os.read(got, 1), b'0')
fcntl.lockf(fs[1], fcntl.LOCK_UN); same(os.read(got, 1), b'1')
ofd(fs[2], 2, 0, 0); same(os.read(got, 1), b'2')
said = []; signal.signal(signal.SIGIO, lambda *a: said.append(1))
def breaker(): os.open(names[3], os.O_WRONLY); os._exit(0)
k = child(breaker); until(lambda: said); fcntl.fcntl(fs[3], 1024, fcntl.F_UNLCK); same(os.waitpid(k, 0)[1], 0)
`,
			spoil: `
for k in kids: os.kill(k, 9); os.waitpid(k, 0)
for f in fs: os.close(f)
`,
		},
		{
			name: "locks, leases and owners of what is on its way and open nowhere",
			setup: `
import fcntl
def ofd(fd, typ, start, n, cmd=37): return fcntl.fcntl(fd, cmd, struct.pack('hhlli4x', typ, 0, start, n, 0))
names = ['/root/w-' + n for n in ('flock', 'ofd', 'lease', 'posix')]
fs = [os.open(n, os.O_RDWR | os.O_CREAT) for n in names]; theirs = [os.open(n, os.O_RDWR) for n in names[:2]]
fcntl.flock(fs[0], fcntl.LOCK_SH); fcntl.fcntl(fs[2], 1024, fcntl.F_WRLCK); fcntl.fcntl(fs[2], 10, 44)
for i in range(100): ofd(fs[1], 1, 3 * i, 2)
fcntl.lockf(fs[3], fcntl.LOCK_EX, 10, 100); posix = os.open(names[3], os.O_RDWR) # locked by this process while both are open
a, b = socket.socketpair(); near, far = socket.socketpair()
fcntl.fcntl(near, 10, 45); fcntl.fcntl(near, 8, os.getpid()); near.setblocking(False)
def send(s, fds): socket.send_fds(s, [b'x'], fds)
inner = socket.socketpair(); send(inner[0], fs[:3]); send(a, [inner[1].fileno(), near.fileno()])
for f in fs[:3]: os.close(f)
inner[0].close(); inner[1].close(); near.close()
def held():
    try: fcntl.flock(theirs[0], fcntl.LOCK_EX | fcntl.LOCK_NB); return False
    except BlockingIOError: pass
    return [struct.unpack('hhlli4x', ofd(theirs[1], 1, at, 0, 36))[:4] for at in (0, 150, 299)]
want = [(1, 0, 0, 2), (1, 0, 150, 2), (2, 0, 299, 0)]
def others():
    k = child(lambda: os._exit(struct.unpack('hhlli4x', fcntl.fcntl(os.open(names[3], os.O_RDWR), 5, struct.pack('hhlli4x', 1, 0, 0, 0, 0)))[0])); return os.waitpid(k, 0)[1] >> 8
`,
			peek: `same(held(), want); same(others(), fcntl.F_WRLCK)`,
			check: `
_, (i, n), _, _ = socket.recv_fds(b, 10, 10); _, got, _, _ = socket.recv_fds(socket.socket(fileno=i), 10, 10)
same([fcntl.fcntl(got[2], 1025), fcntl.fcntl(got[2], 11), fcntl.fcntl(n, 11), fcntl.fcntl(n, 9)], [fcntl.F_WRLCK, 44, 45, os.getpid()])
fcntl.flock(got[0], fcntl.LOCK_UN); fcntl.flock(theirs[0], fcntl.LOCK_EX | fcntl.LOCK_NB); os.close(got[1]); same(struct.unpack('h14x8x8x', ofd(theirs[1], 1, 0, 0, 36)[:32])[0], 2)
`,
			spoil: `b.close(); os.close(posix)`,
		},
		{
			name: "SQLite in the middle of transactions",
			setup: `
import sqlite3
db = sqlite3.connect('/root/a.db', isolation_level=None); db.execute('create table t(x)'); db.execute('insert into t values(1)')
db.execute('begin immediate'); db.execute('insert into t values(2)')
wal = sqlite3.connect('/root/w.db', isolation_level=None); same(wal.execute('pragma journal_mode=wal').fetchone()[0], 'wal')
wal.execute('create table t(x)'); wal.execute('insert into t values(1)')
reader = sqlite3.connect('/root/w.db', isolation_level=None); reader.execute('begin'); same(reader.execute('select count(*) from t').fetchone(), (1,))
wal.execute('begin immediate'); wal.execute('insert into t values(2)')
def busy(path):
    k = child(lambda: os._exit(busy2(path))); return os.waitpid(k, 0)[1] >> 8
def busy2(path):
    o = sqlite3.connect(path, timeout=0, isolation_level=None)
    try: o.execute('begin immediate')
    except sqlite3.OperationalError: return 9
    return 0
`,
			peek: `
same([busy('/root/a.db'), busy('/root/w.db')], [9, 9])
same([c.execute('select count(*) from t').fetchone()[0] for c in (db, wal, reader)], [2, 2, 1])
`,
			check: `
db.execute('insert into t values(3)'); db.execute('commit'); wal.execute('commit')
same(reader.execute('select count(*) from t').fetchone()[0], 1); reader.execute('commit')
same(reader.execute('select count(*) from t').fetchone()[0], 2)
same([busy('/root/a.db'), busy('/root/w.db')], [0, 0])
same([c.execute('pragma integrity_check').fetchone()[0] for c in (db, wal)], ['ok', 'ok'])
same(sqlite3.connect('/root/a.db').execute('select sum(x) from t').fetchone()[0], 6)
`,
			spoil: `
for c in (db, wal, reader): c.close()
os.unlink('/root/a.db')
`,
		},
	})
}

func TestKindsOfSystemV(t *testing.T) {
	playAll(t, []scene{{
		name: "POSIX message queues",
		setup: `
libc.mq_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
for f in (libc.mq_send, libc.mq_receive): f.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
libc.mq_receive.restype = ctypes.c_ssize_t
L8 = ctypes.c_long * 8
def queue(name, flags, most=10, size=100, mode=0o640): return call(libc.mq_open, name, flags | os.O_CREAT, mode, L8(0, most, size))
def send(q, text, priority=0): call(libc.mq_send, q, text, len(text), priority)
def receive(q):
    p, b = ctypes.c_uint(), ctypes.create_string_buffer(100)
    n = call(libc.mq_receive, q, b, 100, ctypes.byref(p)); return b.raw[:n], p.value
def attr(q): a = L8(); call(libc.mq_getattr, q, a); return list(a)[:4]
os.umask(0)
named, same_, gone, waits = queue(b'/named', os.O_RDWR), queue(b'/named', os.O_RDONLY | os.O_NONBLOCK), queue(b'/gone', os.O_RDWR), queue(b'/waits', os.O_RDWR, 1, 50)
call(libc.mq_unlink, b'/gone'); other = queue(b'/gone', os.O_RDWR, 3); os.fchown(other, 5, 6)
for i, (t, p) in enumerate([(b'first', 1), (b'second', 7), (b'', 1), (b'last', 0), (b'second again', 7)]): send(named, t, p)
send(gone, b'kept', 3); send(other, b'of the other', 3)
q = queue(b'/nobody', os.O_RDWR, 4); os.fchown(q, 5, 6); send(q, b'low'); send(q, b'for whoever comes', 2); os.close(q)
by_path = os.open('/dev/mqueue/waits', os.O_RDONLY); shown = os.pread(by_path, 6, 0); os.lseek(by_path, 3, 0)
got = []
def waiting(): got.append(receive(waits))
th = threading.Thread(target=waiting, daemon=True); th.start(); time.sleep(0.05)
`,
		peek: `
same((attr(named), attr(same_), attr(gone), attr(other), attr(waits)), ([0, 10, 100, 5], [0o4000, 10, 100, 5], [0, 10, 100, 1], [0, 3, 100, 1], [0, 1, 50, 0]))
same([os.fstat(q).st_nlink for q in (named, gone, other)], [1, 0, 1]); same(got, [])
same([libc.fcntl(q, 3, 0) for q in (named, same_, gone, other)], [2, 0o4000, 2, 2]) # F_GETFL
st = os.fstat(other); same((st.st_uid, st.st_gid, st.st_mode & 0o777), (5, 6, 0o640))
same(os.fstat(named).st_ino, os.fstat(same_).st_ino)
same(sorted(os.listdir('/dev/mqueue')), ['gone', 'named', 'nobody', 'waits'])
st = os.stat('/dev/mqueue/nobody'); same((st.st_uid, st.st_gid, st.st_mode & 0o777), (5, 6, 0o640))
same((os.readlink('/proc/self/fd/%d' % by_path)[-6:], os.lseek(by_path, 0, 1), os.pread(by_path, 6, 0)), ('/waits', 3, shown))
`,
		check: `
same([receive(same_) for _ in range(5)], [(b'second', 7), (b'second again', 7), (b'first', 1), (b'', 1), (b'last', 0)])
try: receive(same_); raise Exception('more')
except OSError as e: same(e.errno, errno.EAGAIN)
same((receive(gone), receive(other)), ((b'kept', 3), (b'of the other', 3)))
q = call(libc.mq_open, b'/nobody', os.O_RDWR, 0, None); same(attr(q), [0, 4, 100, 2])
same([receive(q), receive(q)], [(b'for whoever comes', 2), (b'low', 0)]); os.close(q); call(libc.mq_unlink, b'/nobody')
q = queue(b'/named', os.O_RDWR); send(q, b'new'); same(receive(named), (b'new', 0)); os.close(q)
send(waits, b'at last'); th.join(10); same(got, [(b'at last', 0)])
`,
		spoil: `
try:
    call(libc.mq_unlink, b'/nobody')
    for _ in range(5): receive(same_)
except OSError: pass
`,
	}, {
		name: "System V shared memory, semaphores and message queues",
		setup: `
libc.shmat.restype = ctypes.c_void_p; libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]; libc.shmdt.argtypes = [ctypes.c_void_p]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def shm(key, size, mode=0o640): return call(libc.shmget, key, size, 0o3000 | mode)
first = shm(0x77, 100); call(libc.shmctl, first, 0, None)   # numbers do not begin at 0
a, b, gone, big = shm(0x1234, 20000), shm(0, 4096, 0o600), shm(0, 8192), shm(0x99, 1 << 30)
at, ro, at2 = libc.shmat(a, None, 0), libc.shmat(a, None, 0o10000), libc.shmat(gone, None, 0)
call(libc.shmctl, gone, 0, None)
ctypes.memmove(at, b'shared', 6); ctypes.memmove(at + 12288, b'behind', 6); ctypes.memmove(at2, b'removed', 7)
call(libc.mprotect, at + 8192, 4096, 1)
x = libc.shmat(big, None, 0); ctypes.memmove(x + (700 << 20), b'far', 3); call(libc.shmdt, x)
s = call(libc.semget, 0x55, 4, 0o3600)
def op(n, d, flags=0o4000): return libc.semop(s, struct.pack('HhH', n, d, flags), 1)
call(op, 0, 3); call(op, 2, 1)
def values(): return [libc.semctl(s, i, 12) for i in range(4)]
q = call(libc.msgget, 0x66, 0o3622)
def send(typ, text): b = struct.pack('q', typ) + text; return call(libc.msgsnd, q, b, len(text), 0o4000)
def receive(typ, flags=0o4000):
    b = ctypes.create_string_buffer(200); n = libc.msgrcv(q, b, 192, ctypes.c_long(typ), flags); return b.raw[8:8 + n] if n >= 0 else None
for t, m in ((5, b'five'), (1, b''), (5, b'cinq'), (9, b'x' * 150)): send(t, m)
def other():
    os.setgid(7); os.setuid(6); shm(0x4321, 50, 0o600); os._exit(0)
os.waitpid(child(other), 0)
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    os.write(w2, b'k'); call(libc.semop, s, struct.pack('HhH', 1, -2, 0), 1); os.write(w2, b'semaphore')
    os.write(w2, receive(77, 0)); os.write(w2, ctypes.string_at(at, 6)); ctypes.memmove(at + 100, b'from the child', 14); os.write(w2, b'!'); time.sleep(1000)
k = child(kid); same(os.read(r2, 1), b'k')
until(lambda: open('/proc/%d/syscall' % k).read().split()[0] in ('65', '220'))
def ipcs(n):
    t = [l.split() for l in open('/proc/sysvipc/' + n)]
    keep = [i for i, c in enumerate(t[0]) if c in ('key', 'shmid', 'semid', 'msqid', 'perms', 'size', 'nsems', 'qnum', 'cbytes', 'uid', 'gid', 'cuid', 'cgid', 'nattch')]
    return sorted([l[i] for i in keep] for l in t)
def facts(): return [ipcs(n) for n in ('shm', 'sem', 'msg')]
was = facts()
`,
		peek: `
same(facts(), was)
same((ctypes.string_at(at, 6), ctypes.string_at(ro + 12288, 6), ctypes.string_at(at2, 7)), (b'shared', b'behind', b'removed'))
same(values(), [3, 0, 1, 0])
same(sorted(l.split()[1] for l in open('/proc/self/maps') if '/SYSV' in l), ['r--s', 'r--s', 'rw-s', 'rw-s', 'rw-s'])
`,
		check: `
x = libc.shmat(big, None, 0o10000); same(ctypes.string_at(x + (700 << 20), 4), b'far\0'); call(libc.shmdt, x)
call(op, 1, 2); same(os.read(r2, 9), b'semaphore'); send(77, b'typed')
got = b''
while not got.endswith(b'!'): got += os.read(r2, 100)
same(got, b'typedshared!'); same(ctypes.string_at(ro + 100, 14), b'from the child')
same([receive(5), receive(0), receive(5), receive(0), receive(0)], [b'five', b'', b'cinq', b'x' * 150, None])
call(libc.shmdt, at2); call(libc.shmdt, ro)
n = shm(0, 100); assert n not in (a, b, big), n
same(libc.shmget(0x1234, 0, 0), a); same(libc.shmget(0x4321, 0, 0) >= 0, True)
`,
		spoil: `
ctypes.memmove(at, b'spoilt', 6); op(0, 5); send(1, b'more')
os.kill(k, 9); os.waitpid(k, 0)
for i in (a, b, big): libc.shmctl(i, 0, None)
`,
	}})
}
