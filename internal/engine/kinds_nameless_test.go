package engine_test

import "testing"

func TestKindsOfProgramsAndDirectoriesWithoutNames(t *testing.T) {
	playAll(t, []scene{
		{
			name: "places of what is gone",
			setup: `
O_PATH = 0o10000000
os.mkdir('/root/d'); d = os.open('/root/d', O_PATH | os.O_DIRECTORY); os.rmdir('/root/d')
w = os.open('/root/f', os.O_RDWR | os.O_CREAT); os.write(w, b'content'); f = os.open('/root/f', O_PATH); os.unlink('/root/f')
open('/root/g', 'w').write('alone'); g = os.open('/root/g', O_PATH); os.unlink('/root/g')
def again(fd, flags=os.O_RDONLY):
    n = os.open('/proc/self/fd/%d' % fd, flags)
    try: return os.read(n, 100) if flags == os.O_RDONLY else os.write(n, b'C')
    finally: os.close(n)
`,
			peek: `
same((again(f), again(g)), (b'content', b'alone'))
same(os.readlink('/proc/self/fd/%d' % d).endswith('(deleted)'), True)
same((os.fstat(d).st_nlink, os.fstat(f).st_nlink, os.fstat(f).st_ino), (0, 0, os.fstat(w).st_ino))
try: os.read(f, 1); raise Exception('it can be read')
except OSError as e: same(e.errno, errno.EBADF)
`,
			check: `again(f, os.O_WRONLY); same(os.pread(w, 100, 0), b'Content')`,
			spoil: `again(f, os.O_WRONLY)`,
		},
		{
			name: "attributes and access control lists of files that are made anew",
			setup: `
acl = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', *e) for e in ((1, 7, 0xffffffff), (2, 5, 1000), (4, 0, 0xffffffff), (8, 6, 77), (16, 7, 0xffffffff), (32, 0, 0xffffffff)))
def tell(f, default=False): os.setxattr(f, 'user.mark', b'of a file'); os.setxattr(f, 'system.posix_acl_' + ('default' if default else 'access'), acl); return f
def new(path): return tell(os.open(path, os.O_RDWR | os.O_CREAT, 0o640))
fs = [new('/root/gone'), new('/dev/shm/gone'), new('/dev/shm/stays'), os.memfd_create('memory')]; os.unlink('/root/gone'); os.unlink('/dev/shm/gone'); os.setxattr(fs[3], 'user.mark', b'')
for d in ('/root/dir', '/dev/shm/dir', '/root/here'): os.mkdir(d); tell(d, True); os.chmod(d, 0o3755)
fs += [os.open(d, os.O_RDONLY) for d in ('/root/dir', '/dev/shm/dir')]; os.chdir('/root/here')
for d in ('/root/dir', '/root/here'): os.utime(d, ns=(1, 222)); os.rmdir(d)
s = socket.socket(socket.AF_UNIX); s.bind('/root/socket'); s.listen(); os.setxattr('/root/socket', 'system.posix_acl_access', acl); os.utime('/root/socket', ns=(1, 333))
def attributes(f): st = os.stat(f); return oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns, sorted((n, os.getxattr(f, n)) for n in os.listxattr(f))
def all_of(): return [attributes(f) for f in fs + ['.', '/root/socket', '/dev/shm/stays', '/dev/shm/dir']]
was = all_of()
`,
			peek:  `same(all_of(), was)`,
			check: `same(len(was[0][4]), 2); same((was[4][0], was[4][3], was[-3][3]), ('0o43755', 222, 333))`,
			spoil: `os.removexattr(fs[0], 'user.mark'); os.removexattr('/dev/shm/stays', 'user.mark')`,
		},
		{
			name: "names that /proc escapes, pads or marks",
			setup: `
names = [b'a\\012b', b'a\nb', b'a\\012b\n', b' ', b'end ', b'gone (deleted)', b'\n (deleted)', b'\xff\xfe', b'n' * 255]
os.mkdir('/root/odd'); maps = []; held = []
for n in names:
    p = b'/root/odd/' + n; f = open(p, 'wb+'); f.write(n.ljust(8192, b'.')); f.flush()
    private = mmap.mmap(f.fileno(), 8192, flags=mmap.MAP_PRIVATE); shared = mmap.mmap(f.fileno(), 8192); private[4096:4097] = b'P'
    d = b'/root/odd/d' + n[:254]; os.mkdir(d); i = call(libc.inotify_init1, os.O_NONBLOCK); call(libc.inotify_add_watch, i, d, 0x100)
    maps.append((private, shared)); held.append((f, i))
os.mkdir('/root/cwd'); os.chdir('/root/cwd'); os.rmdir('/root/cwd'); os.mkdir('/root/cwd (deleted)'); open('/root/cwd (deleted)/other', 'w').close()
`,
			peek: `
for n, (private, shared), (f, i) in zip(names, maps, held):
    same((private[:len(n)], private[4096:4097], shared[:len(n)], os.readlink(b'/proc/self/fd/%d' % f.fileno())), (n, b'P', n, b'/root/odd/' + n), n)
same((os.listdir('.'), os.stat('.').st_nlink), ([], 0))
`,
			check: `
for n, (private, shared), (f, i) in zip(names, maps, held):
    shared[:1] = b'!'; same(open(b'/root/odd/' + n, 'rb').read(1), b'!', n)
    open(b'/root/odd/d' + n[:254] + b'/new', 'w').close(); same(os.read(i, 100)[-16:].rstrip(b'\0'), b'new', n)
`,
			spoil: `
import shutil
shutil.rmtree('/root/odd')
`,
		},
		{
			name: "files with another name in another directory",
			setup: `
f = os.open('/root/first', os.O_RDWR | os.O_CREAT); os.write(f, b'content')
os.makedirs('/srv/far/away'); os.link('/root/first', '/srv/far/away/second'); os.unlink('/root/first')
g = open('/etc/hostname') # of a layer or not
os.link('/etc/hostname', '/srv/kept'); open('/etc/new', 'w').close(); os.rename('/etc/new', '/etc/hostname')
text = g.read(); g.seek(1)
`,
			peek: `
same(os.pread(f, 100, 0), b'content'); same(open('/srv/far/away/second').read(), 'content')
same(g.tell(), 1); same(open('/srv/kept').read(), text); same(g.read(), text[1:]); g.seek(1)
same(os.path.exists('/root/first'), False); same(os.fstat(f).st_nlink, 1)
`,
			check: `
os.pwrite(f, b'C', 0); same(open('/srv/far/away/second').read(), 'Content')
`,
			spoil: `
os.truncate('/srv/far/away/second', 0); os.unlink('/srv/far/away/second')
`,
		},
		{
			name: "removed directories that somebody was in the middle of reading",
			setup: `
def removed(path, reads):
    os.mkdir(path); d = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for i in range(5): open('%s/%d' % (path, i), 'w').close()
    for _ in range(reads): call(libc.syscall, 217, d, ctypes.create_string_buffer(80), 80) # getdents64
    import shutil; shutil.rmtree(path); return d
ds = [removed('/root/d%d' % n, n) for n in (0, 1, 9)]
was = [os.lseek(d, 0, os.SEEK_CUR) for d in ds]
`,
			peek: `same([os.lseek(d, 0, os.SEEK_CUR) for d in ds], was); same([os.fstat(d).st_nlink for d in ds], [0] * 3)`,
			check: `
for d in ds: same((libc.syscall(217, d, ctypes.create_string_buffer(80), 80), ctypes.get_errno()), (-1, errno.ENOENT))
`,
			spoil: `[os.lseek(d, 0, os.SEEK_SET) for d in ds]`,
		},
		{
			name: "programs that were deleted or replaced",
			setup: `
import shutil
PY = os.path.realpath('/proc/self/exe')
def program(path):
    shutil.copy(PY, path)
    p = subprocess.Popen([path, '-uc', 'import sys, os, ctypes\nmark = os.getpid()\nprint(1)\nfor l in sys.stdin: print(eval(l))'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    same(p.stdout.readline(), '1\n'); return p
def ask(p, what): p.stdin.write(what + '\n'); p.stdin.flush(); return p.stdout.readline().strip()
ps = [program('/root/deleted'), program('/root/replaced')]
os.unlink('/root/deleted'); shutil.copy('/bin/true', '/root/new'); os.rename('/root/new', '/root/replaced')
libc.prctl(41, 1, 0, 0, 0) # PR_SET_THP_DISABLE
libc.prctl(41, 1, 2, 0, 0) # but for memory that asks for them, from Linux 6.18 on
huge = libc.prctl(42, 0, 0, 0, 0)
size = os.stat(PY).st_size
`,
			peek: `
for p in ps:
    same(ask(p, 'mark'), str(p.pid)); assert os.readlink('/proc/%d/exe' % p.pid).endswith(' (deleted)')
    same(os.stat('/proc/%d/exe' % p.pid).st_size, size)
same(libc.prctl(42, 0, 0, 0, 0), huge); same(huge & 1, 1)
`,
			check: `
for p in ps:
    same(subprocess.run(['/proc/%d/exe' % p.pid, '-c', 'print(6 * 7)'], stdout=subprocess.PIPE).stdout, b'42\n')
    same(ask(p, '__import__("json").dumps([1])'), '[1]')
same(subprocess.run(['/root/replaced']).returncode, 0)
`,
			spoil: `[(p.kill(), p.wait()) for p in ps]; os.unlink('/root/replaced')`,
		},
		{
			name: "working directories that were removed",
			setup: `
os.makedirs('/root/gone/below'); os.chdir('/root/gone/below')
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    while True: os.read(r, 1); s = os.stat('.'); os.write(w2, b'%d' % s.st_ino)
k = child(kid); mode = os.stat('.').st_mode
os.rmdir('/root/gone/below'); os.rmdir('/root/gone')
`,
			peek: `
s = os.stat('.'); same((s.st_nlink, s.st_mode, os.listdir('.')), (0, mode, []))
os.write(w, b'!'); same(int(os.read(r2, 100)), s.st_ino, 'the same directory')
`,
			check: `
try: open('x', 'w')
except FileNotFoundError: pass
else: raise Exception('a file in a removed directory')
os.mkdir('/root/gone'); os.chdir('/root/gone'); open('x', 'w').close()
`,
			spoil: `os.chdir('/'); os.kill(k, 9); os.waitpid(k, 0)`,
		},
		{
			name: "a changed root",
			setup: `
for d in ('/root/jail/etc', '/root/jail/data'): os.makedirs(d)
open('/root/jail/etc/name', 'w').write('jail'); open('/etc/name', 'w').write('outside')
r, w = os.pipe(); r2, w2 = os.pipe()
def kid():
    os.chroot('/root/jail'); os.chdir('/data'); f = open('kept', 'w+b'); f.write(b'x' * 5000); f.flush()
    m = mmap.mmap(f.fileno(), 5000); m[:4] = b'mapd'; os.write(w2, b'!')
    while True:
        os.read(r, 1)
        os.write(w2, repr((open('/etc/name').read(), os.getcwd(), sorted(os.listdir('/')), bytes(m[:5]), os.pread(f.fileno(), 5, 0))).encode())
k = child(kid); same(os.read(r2, 1), b'!')
def ask(): os.write(w, b'?'); return eval(os.read(r2, 1000))
`,
			peek:  `same(ask(), ('jail', '/data', ['data', 'etc'], b'mapdx', b'mapdx')); same(os.readlink('/proc/%d/root' % k), '/root/jail')`,
			check: `open('/root/jail/etc/name', 'w').write('new'); same(ask()[0], 'new'); os.pwrite(os.open('/root/jail/data/kept', os.O_RDWR), b'late', 0); same(ask()[3:], (b'latex', b'latex'))`,
			spoil: `os.kill(k, 9); os.waitpid(k, 0); import shutil; shutil.rmtree('/root/jail')`,
		},
	})
}
