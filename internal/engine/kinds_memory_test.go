package engine_test

import "testing"

func TestKindsOfMemory(t *testing.T) {
	playAll(t, []scene{
		{
			name: "shared anonymous memory of a tree",
			setup: `
m = mmap.mmap(-1, 1 << 20); m[:5] = b'hello'
holes = mmap.mmap(-1, 1 << 33, flags=mmap.MAP_SHARED | 0x4000); holes[5 << 30] = 7
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    while True:
        c = os.read(r, 1)
        if c == b'q': os._exit(0)
        m[100:101] = c; os.write(w2, bytes([m[101]]))
k = child(kid)
def exchange(a, b):
    m[101] = b; os.write(w, bytes([a])); same(os.read(r2, 1)[0], b); same(m[100], a)
exchange(1, 2)
`,
			peek:  `same(bytes(m[:5]), b'hello'); same((m[100], m[101]), (1, 2)); same((holes[5 << 30], holes[1 << 30]), (7, 0))`,
			check: `exchange(7, 8); exchange(9, 10); os.write(w, b'q'); same(os.waitpid(k, 0), (k, 0))`,
			spoil: `m[:5] = b'spoil'; m[100] = 77; holes[5 << 30] = 9`,
		},
		{
			name: "hundreds of shared mappings", // more than a socket holds descriptors
			setup: `
ms = [mmap.mmap(-1, 4096) for i in range(600)]
for i, m in enumerate(ms): m[0:4] = i.to_bytes(4, 'little')
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    while os.read(r, 1) == b'x':
        for m in ms: m[4] += 1
        os.write(w2, b'x')
k = child(kid)
`,
			peek:  `same([int.from_bytes(m[0:8], 'little') for m in ms], list(range(600)))`,
			check: `os.write(w, b'x'); same(os.read(r2, 1), b'x'); same([m[4] for m in ms], [1] * 600)`,
			spoil: `for m in ms: m[0:8] = b'spoilspo'`,
		},
		{
			name: "multiprocessing: locks, queues, values, shared memory",
			setup: `
import multiprocessing as mp, multiprocessing.shared_memory as sm
mp.set_start_method('fork')
lock, sem, value, array, ev = mp.Lock(), mp.Semaphore(0), mp.Value('i', 5), mp.Array('d', 1000), mp.Event()
tasks, results = mp.SimpleQueue(), mp.SimpleQueue()
seg = sm.SharedMemory(create=True, size=1 << 16); seg.buf[:4] = b'wxyz'
def worker():
    while True:
        x = tasks.get()
        if x is None: return
        with lock:
            value.value += x
            sum = value.value
        array[x] = x / 2
        seg.buf[10] = x
        results.put(sum)
ps = [mp.Process(target=worker) for _ in range(3)]
for p in ps: p.start()
def task(x):
    tasks.put(x); return results.get()
same(task(3), 8)
for x in (1, 1): tasks.put(x)
until(lambda: value.value == 10)
`,
			peek: `
same((value.value, array[3], bytes(seg.buf[:4]), seg.buf[10]), (10, 1.5, b'wxyz', 1))
same([p.is_alive() for p in ps], [True] * 3)
`,
			check: `
same(sorted([results.get(), results.get()]), [9, 10])
same(task(20), 30); same((array[20], seg.buf[10]), (10, 20))
lock.acquire(); tasks.put(1); time.sleep(0.05); same(value.value, 30); lock.release()
same(results.get(), 31)
again = sm.SharedMemory(seg.name); same(bytes(again.buf[:4]), b'wxyz')
for p in ps: tasks.put(None)
for p in ps: p.join(10); same(p.exitcode, 0)
`,
			spoil: `
value.value = 1000; seg.buf[:4] = b'....'
try:
    for p in ps: os.kill(p.pid, 9)
except OSError: pass
seg.unlink()
`,
		},
		{
			name: "unlinked shared memory with an open descriptor",
			setup: `
def unlinked(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(fd, 1 << 16); os.unlink(path)
    m = mmap.mmap(fd, 1 << 16); m[:6] = b'mapped'
    return fd, m
pairs = [unlinked('/dev/shm/gone'), unlinked('/root/gone')]
`,
			peek: `
for fd, m in pairs:
    same(bytes(m[:6]), b'mapped'); same(os.pread(fd, 6, 0), b'mapped')
`,
			check: `
for fd, m in pairs:
    os.pwrite(fd, b'by write', 4096); same(bytes(m[4096:4104]), b'by write')
    m[8192:8194] = b'mm'; same(os.pread(fd, 2, 8192), b'mm')
`,
			spoil: `
for fd, m in pairs: m[:6] = b'spoilt'
`,
		},
		{
			name: "named shared files",
			setup: `
def named(path):
    with open(path, 'w+b') as f:
        f.write(b'x' * 10000); f.flush()
        m = mmap.mmap(f.fileno(), 10000); m[:4] = b'save'
    return path, m
ms = [named('/root/data'), named('/dev/shm/data')]
`,
			peek: `
for path, m in ms:
    same(bytes(m[:5]), b'savex'); same(open(path, 'rb').read(5), b'savex')
`,
			check: `
for path, m in ms:
    m[5000:5003] = b'new'; same(open(path, 'rb').read()[5000:5003], b'new')
    with open(path, 'r+b') as f: f.write(b'file')
    same(bytes(m[:4]), b'file')
`,
			spoil: `
for path, m in ms: m[:4] = b'lost'
`,
		},
		{
			name: "private mappings of files: of the upper, deleted, replaced, of memory",
			setup: `
def private(path, delete=False, replace=False, fd=None, prot=mmap.PROT_READ | mmap.PROT_WRITE):
    if fd is None: fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b''.join(b'%07d\n' % i for i in range(2048)))
    m = libc.mmap(None, 16384, prot, 2, fd, 0)
    if prot & mmap.PROT_WRITE: ctypes.memmove(m + 4096, b'mine', 4)
    os.close(fd)
    if delete: os.unlink(path)
    if replace:
        with open(path + '.new', 'wb') as f: f.write(b'replaced' * 2048)
        os.rename(path + '.new', path)
    return m
ro = mmap.PROT_READ
ms = [private('/root/a'), private('/root/b', delete=True), private('/root/c', replace=True), private('/dev/shm/d'), private('/dev/shm/e', delete=True),
      private(None, fd=os.memfd_create('f'))]
rs = [private('/root/g', prot=ro), private('/root/h', delete=True, prot=ro), private('/dev/shm/i', prot=ro), private(None, fd=os.memfd_create('j'), prot=ro)]
none = private('/root/k', delete=True, prot=mmap.PROT_READ)
nobody = libc.mmap(None, 8192, 0, 2, os.open('/root/a', os.O_RDONLY), 0)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def peek():
    for i, m in enumerate(ms + rs):
        same(ctypes.string_at(m, 8), b'0000000\n', 'first of %d' % i); same(ctypes.string_at(m + 8192, 8), b'0001024\n', 'third of %d' % i)
        same(ctypes.string_at(m + 4096, 4), b'mine' if i < len(ms) else b'0000', 'own page of %d' % i)
`,
			peek: `peek()`,
			check: `
for m in ms: ctypes.memmove(m + 12288, b'late', 4)
peek()
call(libc.mprotect, nobody, 8192, 1); same(ctypes.string_at(nobody + 4096, 4), b'0000')
k = child(lambda: (peek(), os._exit(3))); same(os.waitpid(k, 0), (k, 3 << 8))
`,
			spoil: `
for m in ms: ctypes.memmove(m + 4096, b'gone', 4)
for p in ('/root/a', '/root/g', '/dev/shm/d', '/dev/shm/i'):
    os.unlink(p)
`,
		},
		{
			name: "neighbours of one file that is deleted or replaced, which tracking joins to one mapping",
			setup: `
def neighbours(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600); os.write(fd, b''.join(b'%07d\n' % i for i in range(2048)))
    at = libc.mmap(None, 16384, 3, 2, fd, 0); libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    call(libc.munmap, at + 8192, 8192); same(libc.mmap(at + 8192, 8192, 3, 0x100002, fd, 8192), at + 8192) # MAP_FIXED_NOREPLACE
    os.close(fd); return at
ms = [neighbours('/root/a'), neighbours('/root/b'), neighbours('/root/c')]
os.unlink('/root/b'); open('/root/new', 'w').write('replaced'); os.rename('/root/new', '/root/c')
for m in ms: ctypes.memmove(m + 4096, b'mine', 4); ctypes.memmove(m + 12288, b'mine', 4)
def peek():
    for m in ms: same([ctypes.string_at(m + 4096 * i, 4) for i in range(4)], [b'0000', b'mine', b'0001', b'mine'])
`,
			peek:  `peek()`,
			check: `peek(); same(ctypes.string_at(ms[1] + 8200, 8), b'0001025\n'); same(open('/root/c').read(), 'replaced')`,
			spoil: `[ctypes.memset(m, 0, 16384) for m in ms]; os.unlink('/root/a')`,
		},
		{
			name: "a library written in the sandbox",
			setup: `
import shutil, sysconfig, glob
import importlib.machinery, importlib.util
src = (glob.glob('/usr/lib/python3*/lib-dynload/_json*.so') + glob.glob('/usr/lib/python3*/lib-dynload/*.so'))[0]
shutil.copy(src, '/root/copy.so')
lib = ctypes.CDLL('/root/copy.so')
os.rename('/root/copy.so', '/root/moved.so')
shutil.copy(src, '/root/other.so'); lib2 = ctypes.CDLL('/root/other.so'); os.unlink('/root/other.so')
def symbols():
    return [getattr(l, 'PyInit_' + os.path.basename(src).split('.')[0]) for l in (lib, lib2)]
code = [ctypes.string_at(ctypes.cast(s, ctypes.c_void_p).value, 64) for s in symbols()]
`,
			peek:  `same([ctypes.string_at(ctypes.cast(s, ctypes.c_void_p).value, 64) for s in symbols()], code)`,
			check: `same([ctypes.string_at(ctypes.cast(s, ctypes.c_void_p).value, 64) for s in symbols()], code)`,
			spoil: `os.unlink('/root/moved.so')`,
		},
		{
			name: "heap, stack, advice and protections",
			setup: `
libc.sbrk.restype = ctypes.c_void_p
libc.sbrk.argtypes = [ctypes.c_long]
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
brk = libc.sbrk(0); call(lambda: 0 if libc.sbrk(1 << 20) else -1)
ctypes.memset(brk + 4096, 0x41, 100)
sys.setrecursionlimit(100000)
def deep(n, f): return f() if n == 0 else deep(n - 1, f) + 1
P = 4096
def area(pages, prot=3): return libc.mmap(None, pages * P, prot, 0x22, -1, 0)
secret = area(4); ctypes.memset(secret, 0x53, 4 * P); call(libc.madvise, secret, 4 * P, 18) # WIPEONFORK
dont = area(2); ctypes.memset(dont, 0x44, 2 * P); call(libc.madvise, dont, 2 * P, 10) # DONTFORK
nodump = area(2); ctypes.memset(nodump, 0x45, P); call(libc.madvise, nodump, 2 * P, 16)
huge = area(1024); call(libc.madvise, huge, 1024 * P, 14); ctypes.memset(huge, 0x48, 3 << 20)
locked = area(2); call(libc.mlock, locked, 2 * P); ctypes.memset(locked, 0x4c, 2 * P)
split = area(6); ctypes.memset(split, 0x50, 6 * P)
call(libc.mprotect, split + P, P, 1); call(libc.mprotect, split + 2 * P, P, 0); call(libc.mprotect, split + 3 * P, P, 5)
sparse = libc.mmap(None, 1 << 36, 3, 0x4022, -1, 0); ctypes.memset(sparse + (33 << 30), 0x60, 3)
dropped = area(4); ctypes.memset(dropped, 0x70, 4 * P); call(libc.madvise, dropped + P, P, 4)
def flags(at):
    hit = False
    for l in open('/proc/self/smaps'):
        w = l.split()
        if '-' in w[0] and ':' not in w[0]:
            a, b = (int(x, 16) for x in w[0].split('-')); hit = a <= at < b
            if hit: prot = w[1]
        elif hit and w[0] == 'VmFlags:': return prot, {f for f in w[1:] if f in ('wf', 'dd', 'dc', 'lo', 'hg', 'nh', 'gd')}
areas = [secret, dont, nodump, huge, locked, split, split + P, split + 2 * P, split + 3 * P, split + 4 * P, sparse, dropped]
was = [flags(a) for a in areas]
at = ctypes.string_at
`,
			peek: `
same([flags(a) for a in areas], was, 'flags')
same(at(brk + 4096, 3), b'AAA'); same(libc.sbrk(0), brk + (1 << 20), 'brk')
if at(secret, 4 * P) not in (b'S' * 4 * P, bytes(4 * P)): raise Exception('secret')
same(at(dont, 4) + at(nodump, 4) + at(huge + (2 << 20), 4) + at(locked + P, 4), b'DDDDEEEEHHHHLLLL')
same(at(split, 4) + at(split + P, 4) + at(split + 3 * P, 4) + at(split + 5 * P, 4), b'PPPP' * 4)
same(at(sparse + (33 << 30), 4), b'` + "```" + `\x00'); same(at(sparse + (11 << 30), 4), bytes(4))
same(at(dropped, 2) + at(dropped + P, 2) + at(dropped + 2 * P, 2), b'pp\0\0pp')
`,
			check: `
same(at(secret, 4 * P), bytes(4 * P), 'secret')
same(deep(8000, lambda: 1), 8001)
call(lambda: 0 if libc.sbrk(1 << 20) else -1); ctypes.memset(brk + (1 << 20), 0x42, 1 << 20)
call(libc.mprotect, split + 2 * P, P, 3); same(at(split + 2 * P, 4), b'PPPP', 'hidden page')
ctypes.memset(sparse + (44 << 30), 0x61, P)
`,
			spoil: `
ctypes.memset(brk + 4096, 0x42, 100); ctypes.memset(huge, 0x49, 3 << 20); ctypes.memset(split, 0x51, P)
call(libc.mprotect, split + P, P, 3); call(libc.madvise, dropped, 4 * P, 4); call(libc.madvise, secret, 4 * P, 19)
libc.sbrk(-(1 << 19))
`,
		},
		{
			// As sem_open(3) makes its semaphores; multiprocessing opens them by name in workers that are not forked.
			name: "shared files that were unlinked by the name by which they were mapped",
			setup: `
def linked(dir):
    fd = os.open(dir + '/temp', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600); os.ftruncate(fd, 8192)
    m = mmap.mmap(fd, 8192); os.close(fd); m[:5] = b'first'
    os.link(dir + '/temp', dir + '/final'); os.unlink(dir + '/temp')
    return m
def named(path):
    fd = os.open(path, os.O_RDWR); m = mmap.mmap(fd, 8192); os.close(fd); return m
dirs = ['/dev/shm', '/root']
mine = [linked(d) for d in dirs]
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    theirs = [named(d + '/final') for d in dirs]
    while True:
        c = os.read(r, 1)
        for m in theirs: m[100:101] = c
        os.write(w2, bytes(m[200] for m in theirs))
k = child(kid)
def exchange(a, b):
    for m in mine: m[200] = b
    os.write(w, bytes([a])); same(os.read(r2, 2), bytes([b, b])); same([m[100] for m in mine], [a, a])
exchange(1, 2)
import multiprocessing as mp
ctx = mp.get_context('spawn')
sem = ctx.Semaphore(3); again = type(sem._semlock)._rebuild(0, sem._semlock.kind, sem._semlock.maxvalue, sem._semlock.name)
sem.acquire()
where = lambda d: d + '/final'
`,
			peek: `
same([bytes(m[:5]) for m in mine], [b'first'] * 2); same([m[200] for m in mine], [2, 2])
same([open(d + '/final', 'rb').read(5) for d in dirs], [b'first'] * 2)
`,
			check: `
same(again._get_value(), 2); again.acquire(); same(sem.get_value(), 1)
exchange(7, 8); exchange(9, 10)
for d, m in zip(dirs, mine): os.rename(d + '/final', d + '/moved'); late = named(d + '/moved'); late[300] = 5; same(m[300], 5)
os.kill(k, 9)
`,
			spoil: `
for m in mine: m[:5] = b'spoil'; m[200] = 77
`,
		},
		{
			// As the shadow memory of sanitizers: 16 TiB a process, or all that no program uses, where stubs go, too.
			name: "vast mappings of many processes",
			setup: `
G, P = 1 << 30, 4096
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
at = ctypes.string_at
def vast(where, size, prot):
    m = libc.mmap(where, size, prot, 0x4022 | (0x100000 if where else 0), -1, 0)
    if where and m != where: raise Exception('%x is not %x' % (m, where))
    return m
nobody = vast(0x200000000000, 0x100000000000, 0); call(libc.madvise, nobody, 0x100000000000, 16)  # DONTDUMP
low = vast(0x1e0000000000, 0x20000000000, 3)
class Kid:
    def __init__(self, i):
        self.r, w = os.pipe(); r, self.w = os.pipe()
        def run():
            m = vast(None, 14 << 40, 3); n = 0
            def mine(k): return m + k * 601 * G + 5 * P
            def write(k): ctypes.memmove(mine(k), b'%2d of %2d' % (k, i), 8); ctypes.memmove(low + k * 40 * G, b'%2d in %2d' % (k, i), 8)
            while True:
                c = os.read(r, 1)
                if c == b'w': write(n); n += 1
                for k in range(23):
                    same(at(mine(k), 8), b'%2d of %2d' % (k, i) if k < n else bytes(8), 'its own')
                    same(at(low + k * 40 * G, 8), b'%2d in %2d' % (k, i) if k < n else bytes(8), 'low')
                same(at(mine(22) + P, 1), bytes(1))
                os.write(w, b'%3d' % n)
        self.pid = child(run)
    def ask(self, c, n): os.write(self.w, c); same(os.read(self.r, 3), b'%3d' % n)
kids = [Kid(i) for i in range(9)]
for n in 1, 2:
    for k in kids: k.ask(b'w', n)
ctypes.memset(low + 7, 0x61, 2)
def lines(m, size):
    out = []
    for l in open('/proc/self/smaps'):
        w = l.split()
        if ':' not in w[0]:
            a, b = (int(x, 16) for x in w[0].split('-'))
            hit = a >= m and b <= m + size
            if hit: out.append((a, b, w[1]))
        elif hit and w[0] == 'VmFlags:' and 'dd' in w[1:]: out[-1] += ('dd',)
    return out
was = lines(nobody, 0x100000000000)
same(was, [(nobody, nobody + 0x100000000000, '---p', 'dd')], 'nobody\'s')
`,
			peek: `
same(lines(nobody, 0x100000000000), was, 'nobody\'s'); same(at(low + 6, 4), bytes(1) + b'aa' + bytes(1))
for k in kids: k.ask(b'c', 2)
`,
			check: `
for n in range(3, 12):
    for k in kids: k.ask(b'w', n)
call(libc.mprotect, nobody, 3 * P, 3); ctypes.memset(nobody, 0x62, 3 * P); same(at(nobody + 3 * P - 1, 1), b'b')
`,
			spoil: `
for k in kids[1:]: os.write(k.w, b'ww'); os.read(k.r, 6)
ctypes.memset(low, 0x63, 10000); os.kill(kids[0].pid, 9)
`,
		},
		{
			name: "guard pages",
			setup: `
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
P = 4096
area = libc.mmap(None, 32 * P, 3, 0x22, -1, 0); hidden = libc.mmap(None, 8 * P, 0, 0x22, -1, 0)
ctypes.memset(area, 0x41, 32 * P)
def guard(at, n, on=True): call(libc.madvise, at, n * P, 102 if on else 103)
guard(area + 4 * P, 2); guard(area + 10 * P, 5); guard(hidden + 2 * P, 1)
def guarded(at, pages):
    def one(i):
        k = os.fork()
        if k == 0:
            ctypes.string_at(at + i * P, 1); os._exit(0)
        return os.WIFSIGNALED(os.waitpid(k, 0)[1])
    return [i for i in range(pages) if one(i)]
want, text = [4, 5, 10, 11, 12, 13, 14], {}
`,
			peek: `
same(guarded(area, 32), want)
for i in set(range(32)) - set(want): same(ctypes.string_at(area + i * P, 2), text.get(i, b'AA'), str(i))
`,
			check: `
guard(area + 11 * P, 2, False); guard(area + 20 * P, 3); ctypes.memset(area + 11 * P, 0x42, 10)
want, text = [4, 5, 10, 13, 14, 20, 21, 22], {11: b'BB', 12: b'\0\0'}
same(guarded(area, 32), want); same(ctypes.string_at(area + 11 * P, 2) + ctypes.string_at(area + 12 * P, 1), b'BB\0')
call(libc.mprotect, hidden, 8 * P, 3); same(guarded(hidden, 8), [2])
`,
			spoil: `
guard(area, 32, False); ctypes.memset(area, 0x43, 32 * P); guard(area + 7 * P, 2); want = [7, 8]
call(libc.mprotect, hidden, 8 * P, 3)
`,
		},
		{
			name: "sealed and droppable memory",
			setup: `
libc.madvise.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
L, P = ctypes.c_long, 4096
def area(kind): return libc.mmap(None, 4 * P, 3, kind | 0x20, -1, 0)
fd = os.open('/root/mapped', os.O_RDWR | os.O_CREAT); os.write(fd, b'f' * 4 * P); os.unlink('/root/mapped')
ms = [area(2), area(1), libc.mmap(None, 4 * P, 3, 2, fd, 0)]; os.close(fd)
for m in ms: ctypes.memset(m, 0x41, 4 * P)
sealed = [libc.syscall(L(462), L(m + P), L(2 * P), L(0)) for m in ms] == [0, 0, 0] # mseal, Linux 6.10
drop = area(8); droppable = drop != (1 << 64) - 1 # Linux 6.11
if droppable: libc.madvise(drop, 4 * P, 15) # NOHUGEPAGE, if there are huge ones
def flags(at):
    hit = False
    for l in open('/proc/self/smaps'):
        w = l.split()
        if '-' in w[0] and ':' not in w[0]: a, b = (int(x, 16) for x in w[0].split('-')); hit = a <= at < b
        elif hit and w[0] == 'VmFlags:': return {f for f in w[1:] if f in ('wf', 'dd', 'nh', 'dp', 'sl')}
was = [flags(m + i * P) for m in ms for i in range(4)] + [flags(drop)]
def denied(at): return libc.mprotect(at, P, 1) == -1 and ctypes.get_errno() == errno.EPERM
`,
			peek: `
same([flags(m + i * P) for m in ms for i in range(4)] + [flags(drop)], was)
if sealed: same([denied(m + i * P) for m in ms for i in (1, 2)], [True] * 6)
for m in ms: same(ctypes.string_at(m, 4 * P), b'A' * 4 * P)
`,
			check: `
for m in ms: ctypes.memset(m, 0x42, 4 * P); call(libc.mprotect, m, P, 1); call(libc.mprotect, m + 3 * P, P, 1)
`,
			spoil: `
for m in ms: ctypes.memset(m + P, 0x43, P)
`,
		},
		{
			name: "memory that may not be written and executed",
			setup: `
def denied(prot): return libc.mmap(None, 4096, prot, 0x22, -1, 0) == (1 << 64) - 1 and ctypes.get_errno() == errno.EACCES
same(denied(7), False)
call(libc.prctl, 65, 1, 0, 0, 0)
data = ctypes.create_string_buffer(b'kept', 100000)
`,
			peek:  `same((libc.prctl(66, 0, 0, 0, 0), denied(7), denied(5), data.value), (1, True, False, b'kept'))`,
			check: `same(subprocess.run([sys.executable, '-c', 'print(6 * 7)'], stdout=subprocess.PIPE).stdout, b'42\n')`,
			spoil: `data.value = b'spoilt'`,
		},
		{
			name: "what a program is",
			setup: `
text = lambda n: open('/proc/self/' + n, 'rb').read()
facts = lambda: [os.readlink('/proc/self/exe'), text('cmdline'), text('environ'), text('auxv'), text('comm'), stat(os.getpid())['tty']]
libc.prctl(15, b'renamed', 0, 0, 0)
was = facts()
a = time.clock_gettime(time.CLOCK_MONOTONIC)
`,
			peek: `
same(facts(), was)
b = time.clock_gettime(time.CLOCK_MONOTONIC)
if b < a: raise Exception('%f %f' % (a, b))
a = b
for c in (0, 1, 4, 5, 6, 7, 2, 3):
    time.clock_gettime(c)
raw = (ctypes.c_long * 2)(); call(libc.syscall, 228, 1, raw) # the vdso and the kernel agree
if abs(raw[0] + raw[1] / 1e9 - time.clock_gettime(1)) > 5: raise Exception('clocks')
`,
			check: `same(subprocess.run(['/proc/self/exe', '-c', 'print(6 * 7)'], stdout=subprocess.PIPE).stdout, b'42\n')`,
			spoil: `libc.prctl(15, b'spoilt', 0, 0, 0)`,
		},
	})
}
