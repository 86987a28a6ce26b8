package engine_test

import "testing"

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
