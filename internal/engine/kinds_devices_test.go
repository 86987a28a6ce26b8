package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
)

// Programs that remember st_dev.
func TestKindsOfDeviceNumbers(t *testing.T) {
	featuretest.Need(t, "device numbers")
	playAll(t, []scene{
		{
			name: "device numbers of all mounts",
			setup: `
def look(): return {m: os.stat(m).st_dev for m in [l.split()[4] for l in open('/proc/self/mountinfo')]}
was = look(); assert len(set(was.values())) > 6, was
`,
			peek:  `same(look(), was)`,
			check: `same(subprocess.run(['stat', '-c', '%d', '/dev/shm'], capture_output=True, text=True).stdout, '%d\n' % was['/dev/shm'])`,
			spoil: `was = None`,
		},
		{
			// A third connection finds the locks of the first, and its end does not give
			// them up.
			name: "connections of SQLite",
			setup: `
import sqlite3
def connect(m): return sqlite3.connect('/root/%s.db' % m, timeout=0, isolation_level=None)
def busy(db):
    try: db.execute('begin immediate')
    except sqlite3.OperationalError as e: same(str(e), 'database is locked'); return True
    db.execute('rollback'); return False
ELSE = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], timeout=0)\ntry: db.execute('begin immediate')\nexcept sqlite3.OperationalError as e: print(e)\nelse: print('free')"
def elsewhere(m): return subprocess.run([sys.executable, '-c', ELSE, '/root/%s.db' % m], capture_output=True, text=True).stdout
held = {}
for m in ('wal', 'delete'):
    a = connect(m); same(a.execute('pragma journal_mode=' + m).fetchone(), (m,)); a.execute('create table t (x)')
    b = connect(m); same(b.execute('select count(*) from t').fetchone(), (0,))
    a.execute('begin immediate'); a.execute('insert into t values (1)')
    held[m] = a, b
`,
			peek: `
for m, (a, b) in held.items():
    assert busy(b); c = connect(m); assert busy(c), m; c.close()
    same(elsewhere(m), 'database is locked\n', m); assert busy(b)
`,
			check: `
for m, (a, b) in held.items():
    a.execute('commit'); same(elsewhere(m), 'free\n')
    c = connect(m); c.execute('begin immediate'); c.execute('insert into t values (2)'); assert busy(a) and busy(b); c.execute('commit'); c.close()
    same(elsewhere(m), 'free\n'); same(b.execute('select sum(x) from t').fetchone(), (3,)); same(a.execute('pragma integrity_check').fetchone(), ('ok',))
`,
			spoil: `[(a.close(), b.close()) for a, b in held.values()]; [os.unlink('/root/' + f) for f in os.listdir('/root') if '.db' in f]`,
		},
		{
			// They stand in their middle because nobody reads what they print.
			name: "walks of find, du and fwalk",
			setup: `
top = os.path.dirname(os.__file__)
def walk(*argv):
    r, w = os.pipe(); libc.fcntl(w, 1031, 4096) # F_SETPIPE_SZ
    p = subprocess.Popen(argv, stdout=w, stderr=subprocess.STDOUT); os.close(w)
    until(lambda: stat(p.pid)['state'] == 'S' and select.select([r], [], [], 0)[0])
    return p, r
def rest(p, r):
    with os.fdopen(r) as f: said = f.read().splitlines()
    same(p.wait(), 0, said); return sorted(said)
find, du = ('find', top, '-name', '*.py'), ('du', '-a', top)
want = [sorted(subprocess.run(a, capture_output=True, text=True).stdout.splitlines()) for a in (find, du)]
walks = [walk(*find), walk(*du)]
steps = os.fwalk(top); seen = [next(steps)[0] for _ in range(5)]
count = sum(1 for _ in os.walk(top))
`,
			peek:  `same([p.poll() for p, _ in walks], [None, None])`,
			check: `same([rest(*w) for w in walks], want); same(5 + sum(1 for _ in steps), count)`,
			spoil: `[p.kill() for p, _ in walks]`,
		},
		{
			name: "a walk of rm",
			setup: `
import shutil
shutil.copytree(os.path.dirname(os.__file__) + '/json', '/root/one'); [shutil.copytree('/root/one', '/root/tree/%d/%d' % (i // 6, i)) for i in range(36)]
r, w = os.pipe(); libc.fcntl(w, 1031, 4096)
p = subprocess.Popen(['rm', '-rv', '/root/tree'], stdout=w, stderr=subprocess.STDOUT); os.close(w)
until(lambda: stat(p.pid)['state'] == 'S' and select.select([r], [], [], 0)[0])
left = sum(len(f) for _, _, f in os.walk('/root/tree')); assert left > 10, left
`,
			peek:  `same(p.poll(), None); same(sum(len(f) for _, _, f in os.walk('/root/tree')), left)`,
			check: `said = os.fdopen(r).read(); same(p.wait(), 0, said); assert not os.path.exists('/root/tree')`,
			spoil: `p.kill(); p.wait()`,
		},
		{
			name: "a library that is loaded already",
			setup: `
import glob
path, = glob.glob('/usr/lib/*/libz.so.1')
lib = ctypes.CDLL(path)
def maps(): return sum(1 for l in open('/proc/self/maps') if '/libz.so' in l)
n = maps(); assert n > 1
`,
			peek:  `same(maps(), n)`,
			check: `same(ctypes.CDLL(path.replace('/usr/lib/', '/usr/lib/../lib/'))._handle, lib._handle); same(maps(), n)`,
			spoil: `lib = None`,
		},
	})
}
