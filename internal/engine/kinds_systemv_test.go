package engine_test

import "testing"

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
queues = os.open('/dev/mqueue', os.O_RDONLY | os.O_DIRECTORY)
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
same([sorted(os.listdir(d)) for d in ('/dev/mqueue', queues)], [['gone', 'named', 'nobody', 'waits']] * 2)
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
