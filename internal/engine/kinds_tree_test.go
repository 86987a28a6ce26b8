package engine_test

import "testing"

func TestKindsOfProcesses(t *testing.T) {
	playAll(t, []scene{
		{
			name: "children and grandchildren",
			setup: `
def sleeper():
    while True: time.sleep(1000)
def parent():
    for _ in range(2): child(sleeper)
    sleeper()
kids = [child(parent) for _ in range(3)]
def below(p): return [int(x) for x in open('/proc/%d/task/%d/children' % (p, p)).read().split()]
until(lambda: all(len(below(k)) == 2 for k in kids))
tree = {k: below(k) for k in kids}
last = child(lambda: os._exit(0)); os.waitpid(last, 0)
`,
			peek: `
same({k: below(k) for k in kids}, tree)
same(below(os.getpid()), kids)
for k in kids: same(stat(k)['group'], os.getpgid(0))
`,
			check: `
new = child(sleeper)
if new <= last: raise Exception('pid %d is not above %d' % (new, last))
os.kill(new, 9); same(os.waitpid(new, 0), (new, 9))
os.kill(tree[kids[0]][0], 15)
os.kill(kids[1], 10); same(os.waitpid(kids[1], 0), (kids[1], 10))
for g in tree[kids[1]]: same(stat(g)['parent'], 1)
os.kill(kids[2], 9); same(os.wait(), (kids[2], 9))
`,
			spoil: `
for k in list(tree):
    try: os.kill(k, 9); os.waitpid(k, 0)
    except OSError: pass
`,
		},
		{ // more than one batch clones; each has its own memory and that of its child
			name: "many siblings",
			setup: `
pipes = []
def answer(name, r, w, more):
    for p in pipes:
        for fd in p: os.close(fd)
    del pipes[:]
    mine = bytearray(b'%08d' % name * 2000)
    if more: child(lambda: answer(name + 500, more[0], more[1], None))
    while True:
        os.read(r, 1); os.write(w, bytes(mine[-8:])); mine[:8] = mine[8:16]
def start(name, more=False):
    a, b, c, d = os.pipe(), os.pipe(), os.pipe() if more else None, os.pipe() if more else None
    child(lambda: answer(name, a[0], b[1], more and (c[0], d[1])))
    for fd in (a[0], b[1]) + ((c[0], d[1]) if more else ()): os.close(fd)
    return [(a[1], b[0])] + ([(c[1], d[0])] if more else [])
names = []
for i in range(70):
    new = start(i, i % 30 == 7); pipes += new; names += [i, i + 500][:len(new)]
def ask():
    for p in pipes: os.write(p[0], b'x')
    return [int(os.read(p[1], 8)) for p in pipes]
same(ask(), names)
`,
			peek:  `same(ask(), names)`,
			check: `same(ask(), names)`,
			spoil: `
for p in pipes[:10]: os.close(p[0])
pipes, names = pipes[10:], names[10:]
`,
		},
		{
			name: "orphans of dead sessions",
			setup: `
pids = []
for i in range(3): # their session's leader has ended
    o = subprocess.run(['setsid', 'bash', '-c', 'sleep 1000 >/dev/null & echo $$ $!; (sleep 1000 > /dev/null & echo $!)'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    w = [int(x) for x in o.stdout.split()]
    pids.append((w[0], w[1], w[2]))
# an orphan whose session's leader, this program, lives
o = subprocess.run(['bash', '-c', 'sleep 1000 > /dev/null & echo $!'], stdout=subprocess.PIPE)
mine = int(o.stdout)
# a tree below an orphan of a dead session, with groups of its own
o = subprocess.run(['setsid', 'bash', '-c', '(set -m; bash -c "sleep 1000 > /dev/null & echo \\$!; exec sleep 1001 >/dev/null" & echo $!; exec >/dev/null; wait) & sleep 0.3'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
deep = [int(x) for x in o.stdout.split()]
same(len(deep), 2)
until(lambda: all(stat(p)['parent'] for p in deep))
def state(): return [(stat(p)['session'], stat(p)['group'], stat(p)['parent']) for p in deep]
was = state()
`,
			peek: `
for leader, a, b in pids:
    if os.path.exists('/proc/%d' % leader): raise Exception('leader %d lives' % leader)
    for p in (a, b):
        s = stat(p); same((s['parent'], s['session'], s['group']), (1, leader, leader))
s = stat(mine); same((s['parent'], s['session']), (1, os.getsid(0)))
same(state(), was)
`,
			check: `
for leader, a, b in pids:
    os.killpg(leader, 9)
    until(lambda: not os.path.exists('/proc/%d' % a) and not os.path.exists('/proc/%d' % b), 'end of %d' % a)
`,
			spoil: `
for leader, a, b in pids:
    for p in (a, b):
        try: os.kill(p, 9)
        except OSError: pass
os.kill(mine, 9)
`,
		},
		{
			name: "many orphans of one session",
			setup: `
o = subprocess.run(['setsid', 'bash', '-c', 'for i in {1..100}; do sleep 1000 >/dev/null & echo $!; done'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
many = [int(p) for p in o.stdout.split()]; same(len(many), 100)
until(lambda: all(stat(p)['parent'] == 1 for p in many)); leader = stat(many[0])['session']
`,
			peek:  `for p in many: s = stat(p); same((s['parent'], s['session'], s['group']), (1, leader, leader))`,
			check: `os.killpg(leader, 9); until(lambda: not any(os.path.exists('/proc/%d' % p) for p in many))`,
			spoil: `
for p in many[::2]:
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
		{
			name: "groups of dead leaders",
			setup: `
def first():
    os.setpgid(0, 0)
    b = child(lambda: time.sleep(1000)); c = child(lambda: time.sleep(1000))
    os.write(w, b'%d %d\n' % (b, c))
    os._exit(0)
groups = []
for _ in range(2):
    r, w = os.pipe()
    leader = child(first); os.waitpid(leader, 0)
    groups.append((leader, [int(x) for x in os.read(r, 100).split()]))
    os.close(r); os.close(w)
# one whose leader is a zombie
r, w = os.pipe(); zombie = child(first); zkids = [int(x) for x in os.read(r, 100).split()]
os.close(r); os.close(w)
until(lambda: stat(zombie)['state'] == 'Z')
# and one whose session's leader is a zombie
r, w = os.pipe()
def session():
    os.setsid()
    b = child(lambda: time.sleep(1000)); c = child(lambda: (os.setpgid(0, 0), time.sleep(1000)))
    until(lambda: stat(c)['group'] == c)
    os.write(w, b'%d %d\n' % (b, c))
    os._exit(4)
szombie = child(session); skids = [int(x) for x in os.read(r, 100).split()]
os.close(r); os.close(w)
until(lambda: stat(szombie)['state'] == 'Z' and stat(skids[0])['parent'] == 1)
`,
			peek: `
for leader, ps in groups:
    for p in ps: same(stat(p)['group'], leader)
    same(os.path.exists('/proc/%d' % leader), False)
same(stat(zombie)['state'], 'Z')
for p in zkids: same(stat(p)['group'], zombie)
same(stat(szombie)['state'], 'Z')
same([(stat(p)['parent'], stat(p)['session'], stat(p)['group']) for p in skids], [(1, szombie, szombie), (1, szombie, skids[1])])
`,
			check: `
for leader, ps in groups: os.killpg(leader, 9)
os.killpg(zombie, 9)
until(lambda: not any(os.path.exists('/proc/%d' % p) for _, ps in groups for p in ps))
same(os.waitpid(zombie, 0), (zombie, 0))
same(os.waitpid(szombie, 0), (szombie, 4 << 8))
os.killpg(szombie, 9); os.kill(skids[1], 9)
`,
			spoil: `
for leader, ps in groups:
    for p in ps:
        try: os.kill(p, 9)
        except OSError: pass
for p in skids:
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
		{
			name: "zombies",
			setup: `
count = [0]
def chld(*a): count[0] += 1
signal.signal(signal.SIGCHLD, chld)
ends = []
for code in (0, 1, 7, 255): ends.append((child(lambda: os._exit(code)), code << 8))
for sig in (9, 15, 6, 11, 1):
    def die():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sig not in (9,): signal.signal(sig, signal.SIG_DFL)
        os.kill(os.getpid(), sig)
    ends.append((child(die), sig))
def named():
    libc.prctl(15, b'a zombie', 0, 0, 0); os._exit(3)
ends.append((child(named), 3 << 8))
class Caps(ctypes.Structure): _fields_ = [('e', ctypes.c_uint32), ('p', ctypes.c_uint32), ('i', ctypes.c_uint32)]
def user(then):
    os.setgroups([7, 8, 9]); os.setresgid(4, 5, 6); libc.prctl(24, 5, 0, 0, 0); libc.prctl(8, 1, 0, 0, 0)
    os.setresuid(1000, 1001, 1002); libc.setfsuid(1000)
    d = (Caps * 2)(); d[0].p = d[0].i = 0x401; call(libc.capset, struct.pack('II', 0x20080522, 0), d); libc.prctl(47, 2, 10, 0, 0)
    then()
ends += [(child(lambda: user(lambda: os._exit(4))), 4 << 8), (child(lambda: user(lambda: os.kill(os.getpid(), 9))), 9)]
keys = ('Name', 'Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs')
def facts():
    out = []
    for p, _ in ends:
        r = os.waitid(os.P_PID, p, os.WEXITED | os.WNOWAIT); out.append([(k, status(p, k)) for k in keys] + [(r.si_code, r.si_status, r.si_uid)])
    return out
until(lambda: all(stat(p)['state'] == 'Z' for p, _ in ends), 'zombies')
time.sleep(0.05); had = count[0]
was = facts(); same([w[-1][2] for w in was[-3:]], [0, 1000, 1000]); same(was[-2][1][1].split(), ['1000', '1001', '1002', '1000'])
`,
			peek: `
for p, _ in ends: same(stat(p)['state'], 'Z')
for a, b in zip(facts(), was): same(a, b)
time.sleep(0.01)
same(count[0], had, 'SIGCHLD')
same(status(ends[-3][0], 'Name'), 'a zombie')
`,
			check: `
for p, st in ends[:4]: same(os.waitpid(p, 0), (p, st))
got = dict(os.wait() for _ in ends[4:])
same(got, {p: st for p, st in ends[4:]})
try: os.wait(); raise Exception('another child')
except ChildProcessError: pass
`,
			spoil: `
for p, _ in ends:
    try: os.waitpid(p, 0)
    except OSError: pass
`,
		},
		{
			name: "stopped processes",
			setup: `
count = [0]
def chld(*a): count[0] += 1
signal.signal(signal.SIGCHLD, chld)
def work():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    n = 0
    while True: n += 1; time.sleep(0.001)
def group():
    os.setpgid(0, 0)
    work()
def threads():
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for _ in range(3): threading.Thread(target=work).start()
    work()
a, b, c, d = child(work), child(work), child(threads), child(group)
time.sleep(0.1)
for p in (a, b, c): os.kill(p, signal.SIGSTOP)
os.kill(d, signal.SIGTSTP)
for p in (a, b, c, d): until(lambda: stat(p)['state'] == 'T', 'stop')
same(os.waitpid(a, os.WUNTRACED)[1], 0x137f)
time.sleep(0.05); had = count[0]
`,
			peek: `
for p in (a, b, c, d): until(lambda: stat(p)['state'] == 'T', 'it stands as before')
time.sleep(0.01)
same(count[0], had, 'SIGCHLD')
same(os.waitpid(a, os.WUNTRACED|os.WNOHANG), (0, 0), 'a second report')
`,
			check: `
same(os.waitpid(b, os.WUNTRACED|os.WNOHANG), (b, 0x137f))
same(os.waitpid(d, os.WUNTRACED|os.WNOHANG), (d, 0x147f))
for p in (a, b, c, d):
    os.kill(p, signal.SIGCONT)
    until(lambda: stat(p)['state'] in 'SR', 'continue')
    same(os.waitpid(p, os.WCONTINUED), (p, 0xffff))
time.sleep(0.02)
for p in (a, b, c, d): same(stat(p)['state'] in 'SR', True)
for p in (a, b, c, d):
    os.kill(p, 9); same(os.waitpid(p, 0), (p, 9))
`,
			spoil: `
for p in (a, b, c, d):
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
		{
			name: "processes in another session than their parent",
			setup: `
libc.prctl(36, 1, 0, 0, 0) # adopts orphans, as a subreaper
r, w = os.pipe(); r2, w2 = os.pipe(); r3, w3 = os.pipe()
def tell(): os.write(w, b'%d\n' % os.getpid()); time.sleep(1000)
def numbers(n):
    b = b''
    while b.count(b'\n') < n: b += os.read(r, 100)
    return [int(x) for x in b.split()]
def dies():
    os.setsid(); [child(tell) for _ in range(2)]; child(lambda: (os.setpgid(0, 0), child(tell), tell())); os.read(r2, 1); os._exit(0)
dead = child(dies); orphans = numbers(4); os.write(w2, b'!'); os.waitpid(dead, 0)
def lives():
    os.setsid()
    def between(): child(tell); os.read(r2, 1); os._exit(0)
    b = child(between); os.waitpid(b, 0); os.write(w3, b'!'); time.sleep(1000)
alive = child(lives); adopted = numbers(1); os.write(w2, b'!'); os.read(r3, 1)
def changes():
    child(tell); os.read(r2, 1); os.setsid(); child(tell); os.write(w3, b'!'); time.sleep(1000)
changed = child(changes); old = numbers(1); os.write(w2, b'!'); young = numbers(1); os.read(r3, 1)
everyone = orphans + [alive] + adopted + [changed] + old + young
state = lambda: [(stat(p)['parent'], stat(p)['session'], stat(p)['group']) for p in everyone]
me = os.getpid(); was = state()
until(lambda: all(stat(p)['parent'] == me for p in orphans[:2] + adopted)); was = state()
same([x[1] for x in was[:4]], [dead] * 4); same(was[5][:2], (me, alive)); same((was[7][:2], was[8][:2]), ((changed, os.getsid(0)), (changed, changed)))
`,
			peek: `same(state(), was)`,
			check: `
for p in orphans[:2] + adopted: os.kill(p, 9); same(os.waitpid(p, 0), (p, 9))
for p in (alive, changed): os.kill(p, 15); same(os.waitpid(p, 0), (p, 15))
for p in old + young + orphans[2:]: os.kill(p, 9)
for p in old + young + orphans[2:]: until(lambda: os.waitpid(-1, os.WNOHANG)[0] or True)
`,
			spoil: `
for p in everyone:
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
		{
			name: "orphans whose session's leader is not PID 1's child",
			setup: `
r, w = os.pipe(); told = []
def tell(): os.write(w, b'%d\n' % os.getpid()); time.sleep(1000)
def leaves(f, status=0): p = child(lambda: (f(), os._exit(status))); os.waitpid(p, 0); return p
def orphan(group=False): leaves(lambda: child(lambda: (group and os.setpgid(0, 0), tell())))
r2, w2 = os.pipe()
def pane(then=lambda: None):
    os.setsid(); orphan(); orphan(True); then(); os.read(r2, 1); orphan(); orphan(True); os.write(w, b'%d\n' % os.getpid())
    time.sleep(1000)
def told_now(n):
    while len(told) < n:
        told.extend(int(x) for x in os.read(r, 1 << 12).split())
    return told[:]
me = os.getpid()
panes = [child(pane), child(lambda: pane(lambda: child(pane)))]
told_now(6); first = told[:]
until(lambda: all(stat(p)['parent'] == 1 for p in first))
# a session whose leader ends, with orphans from before and from after
def dies(): os.setsid(); orphan(); os.read(r2, 1); orphan(); os._exit(0)
dead = child(dies); told_now(7); first = told[:]
until(lambda: stat(first[6])['parent'] == 1)
libc.prctl(36, 1, 0, 0, 0) # from here on this program adopts them, as a subreaper
os.write(w2, b'!!!!'); told_now(7 + 3 * 3 + 1); os.waitpid(dead, 0)
second = [p for p in told[7:] if p not in panes and stat(p)['session'] != p]
same(len(second), 7)
until(lambda: all(stat(p)['parent'] == me for p in second))
state = lambda: [(p, stat(p)['parent'], stat(p)['session'], stat(p)['group']) for p in told]
was = state()
same([x[1] for x in was[:7]], [1] * 7); same([x[2] for x in was if x[0] in second].count(dead), 1)
`,
			peek: `same(state(), was)`,
			check: `
for p in first: os.kill(p, 9); until(lambda: not os.path.exists('/proc/%d' % p))
for p in second: os.kill(p, 9); same(os.waitpid(p, 0), (p, 9))
inner = [p for p in told if p not in first + second + panes]
same([stat(p)['parent'] for p in inner], panes[1:])
for p in panes + inner: os.kill(p, 9); same(os.waitpid(p, 0), (p, 9))
`,
			spoil: `
for p in told:
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
		{
			name: "the order of children",
			setup: `
def sleeper(size): big = bytearray(b'x' * size); time.sleep(1000)
kids = [child(lambda: sleeper(s)) for s in (100, 20 << 20, 1000, 40 << 20, 100)]
`,
			peek: `same([int(x) for x in open('/proc/self/task/%d/children' % os.getpid()).read().split()], kids)`,
			check: `
for p in reversed(kids): os.kill(p, 9); until(lambda: stat(p)['state'] == 'Z')
same([os.wait()[0] for _ in kids], kids)
`,
			spoil: `
for p in kids:
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
		{
			name: "terminals that nobody else may open, with unread output",
			setup: `
import fcntl, termios, pty
m, s = os.openpty(); lm, ls = os.openpty(); number = os.ttyname(ls)
os.write(s, b'shown'); os.write(ls, b'locked'); fcntl.ioctl(s, termios.TIOCEXCL)
def word(fd, request): return struct.unpack('i', fcntl.ioctl(fd, request, bytes(4)))[0]
fcntl.ioctl(lm, 0x40045431, struct.pack('i', 1)) # TIOCSPTLCK
r, w = os.pipe(); r2, w2 = os.pipe()
def leader(): # of such a terminal, which it has open by /dev/tty alone
    k, n = os.openpty(); os.setsid(); fcntl.ioctl(n, termios.TIOCSCTTY, 0); t = os.open('/dev/tty', os.O_RDWR); os.close(n)
    fcntl.ioctl(k, 0x40045431, struct.pack('i', 1)); os.write(w2, b'!')
    while True: os.read(r, 1); os.write(t, b'tty'); os.write(w2, os.read(k, 100))
kid = child(leader); same(os.read(r2, 1), b'!')
`,
			peek: `
same((word(s, 0x80045440), word(ls, 0x80045440), word(m, 0x80045439), word(lm, 0x80045439)), (1, 0, 0, 1)) # TIOCGEXCL, TIOCGPTLCK
try: os.open(number, os.O_RDWR | os.O_NOCTTY); raise Exception('it is not locked')
except OSError as e: same(e.errno, errno.EIO)
os.write(w, b'?'); same(os.read(r2, 9), b'tty')
`,
			check: `
same((os.read(m, 99), os.read(lm, 99)), (b'shown', b'locked'))
fcntl.ioctl(lm, 0x40045431, bytes(4)); os.close(os.open(number, os.O_RDWR | os.O_NOCTTY))
os.write(lm, b'typed\n'); same(os.read(ls, 99), b'typed\n')
`,
			spoil: `os.write(s, b'more'); fcntl.ioctl(s, termios.TIOCNXCL); os.kill(kid, 9); os.waitpid(kid, 0)`,
		},
		{
			name: "sessions of children",
			setup: `
def leader():
    os.setsid()
    child(lambda: time.sleep(1000))
    time.sleep(1000)
def terminal():
    os.setsid()
    m, s = os.openpty()
    import fcntl, termios
    fcntl.ioctl(s, termios.TIOCSCTTY, 0)
    k = child(lambda: (os.setpgid(0, 0), time.sleep(1000)))
    try: os.setpgid(k, k)
    except OSError: pass
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(s, k)
    os.write(w, b'%d\n' % k)
    time.sleep(1000)
plain = child(leader)
r, w = os.pipe(); term = child(terminal); fg = int(os.read(r, 20))
until(lambda: stat(plain)['session'] == plain)
until(lambda: open("/proc/%d/task/%d/children" % (plain, plain)).read())
grand = int(open('/proc/%d/task/%d/children' % (plain, plain)).read())
state = lambda: [stat(p) | {'state': ''} for p in (plain, grand, term, fg)]
was = state()
same(was[2]['foreground'], fg)
`,
			peek: `same(state(), was)`,
			check: `
os.kill(term, 9); same(os.waitpid(term, 0), (term, 9)) # hangs up its foreground group
until(lambda: not os.path.exists('/proc/%d' % fg), 'hang up')
os.killpg(plain, 15); same(os.waitpid(plain, 0), (plain, 15))
`,
			spoil: `
for p in (plain, grand, fg, term):
    try: os.kill(p, 9)
    except OSError: pass
`,
		},
	})
}
