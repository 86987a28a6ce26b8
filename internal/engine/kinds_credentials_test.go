package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/linux/sched"
)

func TestKindsOfCredentials(t *testing.T) {
	playAll(t, []scene{
		{
			name: "ids, groups, capabilities, filters and limits of children",
			setup: `
import resource, fcntl
keys = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'Umask', 'Cpus_allowed', 'SigBlk')
def prctl(*a): return call(libc.prctl, *a)
def ids(): os.setgroups([7, 8, 9]); os.setresgid(4, 5, 6); os.setresuid(1000, 1001, 1002); prctl(4, 1, 0, 0, 0)
def fsids(): call(libc.setfsuid, 0); os.setresuid(0, 33, 0)
def drop(): # all but two, one of them inheritable and ambient
    class D(ctypes.Structure): _fields_ = [('e', ctypes.c_uint32), ('p', ctypes.c_uint32), ('i', ctypes.c_uint32)]
    d = (D * 2)(); d[0].e = 1; d[0].p = d[0].i = 0x401
    for c in range(2, 10): libc.prctl(24, c, 0, 0, 0)
    prctl(28, 1 << 0 | 1 << 2, 0, 0, 0) # NOROOT, NO_SETUID_FIXUP
    call(libc.capset, struct.pack('II', 0x20080522, 0), d)
    prctl(47, 2, 10, 0, 0)
def filters(): # mkdir fails with EDOM, then also rmdir with ERANGE
    def install(nr, error):
        code = b''.join(struct.pack('HBBI', *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, nr), (6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7fff0000)))
        buf = ctypes.create_string_buffer(code); prctl(22, 2, ctypes.byref(ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(buf)))), 0, 0)
    install(83, errno.EDOM); install(84, errno.ERANGE)
def odd():
    os.umask(0o123); os.chdir('/usr/share')
    resource.setrlimit(resource.RLIMIT_NOFILE, (77, 99)); resource.setrlimit(resource.RLIMIT_CPU, (1000, 2000))
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 22, 1 << 23)); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 31))
    os.nice(7); os.sched_setaffinity(0, {0}); open('/proc/self/oom_score_adj', 'w').write('777')
    prctl(1, 12, 0, 0, 0); prctl(36, 1, 0, 0, 0); prctl(29, 123456, 0, 0, 0); libc.personality(0x0040000)
    call(libc.syscall, 251, 1, 0, 2 << 13 | 5) # ioprio_set: best effort, 5
def idle(): os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
def batch(): os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.nice(3)
kids = {}
for f in (ids, fsids, drop, filters, odd, idle, batch):
    ar, aw = os.pipe(); br, bw = os.pipe()
    def run():
        f(); os.write(bw, b'!')
        for l in iter(lambda: os.read(ar, 1 << 16), b''):
            try: r = repr(eval(l))
            except BaseException as e: r = repr(e)
            os.write(bw, r.encode())
    p = child(run); same(os.read(br, 1), b'!', f.__name__); kids[f.__name__] = (p, aw, br)
def tell(k, line): os.write(kids[k][1], line.encode()); return os.read(kids[k][2], 1 << 16).decode()
def facts():
    out = {}
    for k, (p, _, _) in kids.items():
        out[k] = [(key, status(p, key)) for key in keys] + [open('/proc/%d/limits' % p).read(), tell(k, 'os.getcwd()'),
            open('/proc/%d/oom_score_adj' % p).read(), open('/proc/%d/personality' % p).read() if k == 'odd' else '', os.sched_getscheduler(p), os.getpriority(os.PRIO_PROCESS, p)]
    out['prctl'] = tell('odd', '[libc.prctl(37, ctypes.byref(x), 0, 0, 0) or x.value for x in [ctypes.c_int()]] + [libc.prctl(2, ctypes.byref(x), 0, 0, 0) or x.value for x in [ctypes.c_int()]] + [libc.prctl(30, 0, 0, 0, 0), libc.syscall(252, 1, 0)]')
    out['dumpable'] = [tell(k, 'libc.prctl(3, 0, 0, 0, 0)') for k in kids]
    out['bits'] = tell('drop', 'libc.prctl(27, 0, 0, 0, 0)')
    return out
was = facts()
same(was['prctl'], '[1, 12, 123456, 16389]')
`,
			peek: `
now = facts()
for k in was:
    if isinstance(was[k], list):
        for a, b in zip(now[k], was[k]): same(a, b, k)
    same(now[k], was[k], k)
for error, line in ((errno.EDOM, 'os.mkdir("/tmp/x")'), (errno.ERANGE, 'os.rmdir("/tmp/x")')):
    r = tell('filters', line)
    if str(error) not in r: raise Exception(r)
`,
			check: `
same(tell('ids', 'os.getresuid(), os.getresgid(), sorted(os.getgroups())'), '((1000, 1001, 1002), (4, 5, 6), [7, 8, 9])')
r = tell('ids', 'open("/root/x", "w")'); same('PermissionError' in r, True, r)
r = tell('drop', 'os.setuid(5)'); same('PermissionError' in r, True, r)
p = kids['odd'][0]; os.kill(p, 9); same(os.waitpid(p, 0), (p, 9))
`,
			spoil: `
try:
    for p, _, _ in kids.values(): os.kill(p, 9)
except OSError: pass
`,
		},
		{
			name: "owners of pipes, who may open them again, where nobody has a socket",
			setup: `
r, w = os.pipe(); os.write(w, b'data'); rr, ww = os.pipe(); os.fchown(rr, 33, 44)
def owners(): return [(s.st_uid, s.st_gid) for s in map(os.fstat, (r, rr, 1))]
was = owners(); same(was[:2], [(0, 0), (33, 44)])
`,
			peek: `
same(owners(), was)
for path in ('/dev/stdout', '/dev/stderr', '/proc/self/fd/%d' % w): os.close(os.open(path, os.O_WRONLY))
`,
			check: `
def other(): os.setgid(44); os.setuid(33); f = os.open('/proc/self/fd/%d' % ww, os.O_WRONLY); os.write(f, b'by 33'); os._exit(0)
k = child(other); same(os.waitpid(k, 0), (k, 0)); same(os.read(rr, 9), b'by 33'); same(os.read(r, 9), b'data')
`,
			spoil: `os.fchown(rr, 0, 0); os.fchown(r, 33, 44)`,
		},
		{
			name: "limits below what there is",
			setup: `
import resource
low = []
for name, most, locks in (('NOFILE', 0, 0), ('NOFILE', 5, 0), ('AS', 4096, 0), ('DATA', 0, 0), ('STACK', 0, 0), ('FSIZE', 0, 0), ('NPROC', 0, 0), ('MEMLOCK', 0, 0), ('MEMLOCK', 0, 1), ('SIGPENDING', 0, 0)):
    ar, aw = os.pipe(); br, bw = os.pipe()
    def run():
        if locks: call(libc.mlockall, 2) # MCL_FUTURE: what is mapped from now on is locked
        which = getattr(resource, 'RLIMIT_' + name)
        resource.setrlimit(which, (most, resource.getrlimit(which)[1])) # who may not raise hard limits refuses those
        os.write(bw, b'!')
        while os.read(ar, 1): os.write(bw, b'.')
        os._exit(0)
    p = child(run); same(os.read(br, 1), b'!', name); low.append((p, aw, br))
limits = lambda: [open('/proc/%d/limits' % p).read() for p, _, _ in low]
was = limits()
`,
			peek:  `same(limits(), was)`,
			check: `for p, a, b in low: os.write(a, b'x'); same(os.read(b, 1), b'.', was)`,
			spoil: `
for p, _, _ in low: os.kill(p, 9); os.waitpid(p, 0)
`,
		},
	})
}

// Threads of one process may differ in all that belongs to a thread.
func TestKindsOfThreadsThatDiffer(t *testing.T) {
	playAll(t, []scene{
		{
			name: "users, groups, capabilities, filters and scheduling of threads",
			setup: `
import queue
keys = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'Cpus_allowed', 'SigBlk')
L = ctypes.c_long
def raw(*a): # of this thread alone: the C library's calls are for all threads
    if libc.syscall(*[L(x) if isinstance(x, int) else x for x in a]) == -1: raise OSError(ctypes.get_errno(), str(a))
def groups(*g): raw(116, len(g), (ctypes.c_uint32 * len(g))(*g))
def install(nr, error, flags=0):
    code = b''.join(struct.pack('HBBI', *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, nr), (6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7fff0000)))
    buf = ctypes.create_string_buffer(code); raw(317, 1, flags, ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(buf))))
class Caps(ctypes.Structure): _fields_ = [('e', ctypes.c_uint32), ('p', ctypes.c_uint32), ('i', ctypes.c_uint32)]
def user(): groups(7, 8); raw(119, 4, 5, 6); raw(117, 1000, 1001, 1002)
def fsuser(): raw(122, 33); raw(123, 34)
def nobody(): raw(117, 65534, 65534, 65534)
def bounded():
    for c in range(2, 8): raw(157, 24, c, 0, 0, 0)
    raw(157, 28, 5, 0, 0, 0)
    d = (Caps * 2)(); d[0].e = 1; d[0].p = d[0].i = 0x401; raw(126, ctypes.create_string_buffer(struct.pack('II', 0x20080522, 0)), d)
    raw(157, 47, 2, 10, 0, 0)
def filtered(): install(84, errno.ERANGE)
def batch(): os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)); os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 9)
def idle(): os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0)); os.sched_setaffinity(0, {0})
install(83, errno.EDOM) # before there are threads: all have it
def serve(f):
    try: f()
    except BaseException as e: box[f].put(repr(e))
    box[f].put(threading.get_native_id())
    while True:
        code = say[f].get()
        try: r = eval(code, globals())
        except BaseException as e: r = repr(e)
        box[f].put(r)
all_ = (user, fsuser, nobody, bounded, filtered, batch, idle)
say, box = {f: queue.Queue() for f in all_}, {f: queue.Queue() for f in all_}
for f in all_: threading.Thread(target=serve, args=(f,), daemon=True).start()
tids = {f: box[f].get() for f in all_}
same([t for t in tids.values() if not isinstance(t, int)], [])
def tell(f, code): say[f].put(code); return box[f].get(timeout=10)
def facts():
    out = {}
    for f, t in list(tids.items()) + [('main', os.getpid())]:
        out[f if f == 'main' else f.__name__] = [(k, status('self/task/%d' % t, k)) for k in keys] + [os.sched_getscheduler(t), os.getpriority(os.PRIO_PROCESS, t)]
    return out
was = facts()
same(len({str(v) for v in was.values()}), 8, 'they differ')
`,
			peek: `
now = facts()
for k in was:
    for a, b in zip(now[k], was[k]): same(a, b, k)
for f in all_: same('Numerical argument' in tell(f, "os.mkdir('/tmp/none')"), True, f.__name__)
`,
			check: `
same('Numerical result' in tell(filtered, "os.rmdir('/tmp/none')"), True)
same('No such file' in tell(user, "os.rmdir('/tmp/none')"), True)
same(tell(user, "[libc.syscall(L(n)) for n in (102, 107, 104, 108)]"), [1000, 1001, 4, 5])
for f, want in ((user, (1001, 5)), (nobody, (65534, 0)), (fsuser, (33, 34))):
    n = '/dev/shm/by-' + f.__name__
    r = tell(f, "os.close(os.open('%s', os.O_CREAT | os.O_WRONLY))" % n)
    st = os.stat(n); same((st.st_uid, st.st_gid), want, f.__name__); os.unlink(n)
same('PermissionError' in tell(nobody, "raw(117, 0, 0, 0)"), True)
`,
			spoil: `tell(batch, "os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)")`,
		},
		{
			name: "filters that are given to all threads later",
			setup: `
L = ctypes.c_long
def install(nr, error, flags=0):
    code = b''.join(struct.pack('HBBI', *i) for i in ((0x20, 0, 0, 0), (0x15, 0, 1, nr), (6, 0, 0, 0x50000 | error), (6, 0, 0, 0x7fff0000)))
    buf = ctypes.create_string_buffer(code); call(libc.syscall, L(317), L(1), L(flags), ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(buf))))
install(83, errno.EDOM)
for i in range(3): threading.Thread(target=lambda: [time.sleep(1000) for _ in range(1000)], daemon=True).start()
install(84, errno.ERANGE, 1)
count = lambda: {status('self/task/' + t, 'Seccomp_filters') for t in os.listdir('/proc/self/task')}
was = count()
`,
			peek: `same(count(), was)`,
			check: `
install(131, errno.EXDEV, 1)
same(count(), {str(int(*was) + 1)})
`,
			spoil: `1`,
		},
	})
}

// Real-time scheduling, which only the machine's administrator can give, is kept.
func TestKindsOfRealtime(t *testing.T) {
	h := newHost(t, withoutStandbys) // which have such a process, too
	box := h.create()
	h.exec(box, false, "sleep", "7654321")
	x := h.obedient(box)
	x.must("wait", "until(lambda: any(b'7654321' in open('/proc/' + p + '/cmdline', 'rb').read() for p in os.listdir('/proc') if p.isdigit()))")
	want := sched.Attr{Policy: unix.SCHED_RR, Priority: 3, Flags: sched.ResetOnFork}
	switch e := sched.Set(hostProcesses(t, "7654321")[0], want); e {
	case 0:
	case unix.EPERM: // this machine gives cgroups no time for real-time threads
		featuretest.SkipIfMissing(t, feature.Missing("real-time priority", e))
	default:
		t.Fatal(e)
	}
	c := h.checkpoint(box)
	for range 2 {
		pids := hostProcesses(t, "7654321")
		if len(pids) != 1 {
			t.Fatalf("%d processes", len(pids))
		}
		got, e := sched.Get(pids[0])
		if e != 0 || got.Policy != want.Policy || got.Priority != want.Priority || got.Flags != want.Flags {
			t.Errorf("%+v, %v", got, e)
		}
		h.rollback(box, c.ID)
		h.engine.Wait() // for what was rolled back to end
	}
}

// A process that was restored is confined as one that was started: of both, all
// that the host's /proc tells is compared.
func TestKindsOfConfinement(t *testing.T) {
	h := newHost(t)
	box := h.create()
	start := func(user string) *talk {
		x := h.exec(box, false, "setpriv", "--reuid="+user, "--regid="+user, "--clear-groups", "sleep", "1234567")
		return x
	}
	start("0")
	start("1000")
	shell := h.obedient(box)
	shell.must("wait", `until(lambda: sum(b'1234567' in open('/proc/' + p + '/cmdline', 'rb').read() for p in os.listdir('/proc') if p.isdigit()) == 2)`)
	read := func() map[string]confine.ProcStatus {
		t.Helper()
		out := map[string]confine.ProcStatus{}
		for _, pid := range hostProcesses(t, "1234567") {
			s, err := confine.ReadStatus(pid, initOf(t, pid))
			check(t, err)
			out[s["Uid"]] = s
		}
		if len(out) != 2 {
			t.Fatalf("%d processes", len(out))
		}
		return out
	}
	booted := read()
	c := h.checkpoint(box)
	live := read()
	h.rollback(box, c.ID)
	restored := read()
	for uid := range booted {
		for _, d := range confine.Unexpected(confine.Compare(booted[uid], live[uid])) {
			t.Errorf("live, uid %s: %v", uid, d)
		}
		for _, d := range confine.Compare(booted[uid], restored[uid]) {
			if d.Known == "" {
				t.Errorf("restored, uid %s: %v", uid, d)
			} else {
				t.Logf("restored, uid %s: %v", uid, d)
			}
		}
	}
}

// hostProcesses finds processes of these tests' sandboxes by an argument.
func hostProcesses(t *testing.T, arg string) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(t, err)
	for _, n := range names {
		m, err := os.ReadFile(filepath.Join(filepath.Dir(n), "uid_map"))
		if err != nil || !strings.Contains(string(m), fmt.Sprint(idBase)) {
			continue // of others, whose memory may be locked for long
		}
		b, err := os.ReadFile(n)
		if err != nil || !bytes.Contains(b, []byte("\x00"+arg+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(n)))
		check(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// initOf is the host's number of a process's PID 1: the sessions are its
// children.
func initOf(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	check(t, err)
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
	n, err := strconv.Atoi(f[1])
	check(t, err)
	return n
}
