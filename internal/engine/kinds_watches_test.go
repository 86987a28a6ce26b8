package engine_test

import "testing"

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
	}, {
		name: "an interest list of hundreds that another process holds alone", // more than a socket holds descriptors
		setup: `
ep = select.epoll(); es = [os.eventfd(0) for _ in range(400)]
for e in es: ep.register(e, select.EPOLLIN | select.EPOLLET)
r, w = os.pipe()
def kid():
    while len(c := os.read(r, 2)) == 2: os.eventfd_write(es[int.from_bytes(c, 'little')], 1)
k = child(kid)
for e in es: os.close(e)
`,
		peek: `same(ep.poll(0), [])`,
		check: `
for i in (0, 200, 399):
    os.write(w, i.to_bytes(2, 'little')); same(ep.poll(10), [(es[i], select.EPOLLIN)])
`,
		spoil: `os.write(w, b'\0\0')`,
	}})
}
