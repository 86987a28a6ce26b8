package engine_test

import "testing"

func TestKindsOfSockets(t *testing.T) {
	playAll(t, []scene{
		{
			name: "socket pairs of a tree, with unread data both ways and descriptors on their way",
			setup: `
a, b = socket.socketpair()
c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
g, h = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) # which get names
for s in (g, h): s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1); s.send(b'named')
def kid():
    b.close()
    while True:
        m = a.recv(100)
        if not m: os._exit(7)
        a.send(b'<' + m + b'>')
a2 = a; k = child(kid)
def exchange(m):
    b.send(m); same(b.recv(100), b'<' + m + b'>')
exchange(b'hello')
r, w = os.pipe(); os.write(w, b'piped'); os.close(w)
c.send(b'first'); socket.send_fds(c, [b'second'], [r]); d.send(b'back'); os.close(r)
cred = struct.unpack('3i', b.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
`,
			peek: `
same(struct.unpack('3i', b.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)), cred); same(cred, (os.getpid(), 0, 0))
same(d.recv(100, socket.MSG_PEEK), b'first'); same(c.recv(100, socket.MSG_PEEK), b'back')
same([struct.unpack('3i', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)) for s in (g, h)], [cred, cred]); same(g.getsockname(), h.getpeername())
same([s.recv(100, socket.MSG_PEEK) for s in (g, h)], [b'named', b'named'])
`,
			check: `
exchange(b'again'); same(d.recv(100), b'first')
m, fds, *_ = socket.recv_fds(d, 100, 4); same(m, b'second'); same(os.read(fds[0], 100), b'piped'); same(os.read(fds[0], 100), b'')
same(c.recv(100), b'back')
a.close(); b.close(); same(os.waitpid(k, 0), (k, 7 << 8))
`,
			spoil: `
for s in (c, d):
    try: s.recv(100, socket.MSG_DONTWAIT)
    except OSError: pass
try: os.kill(k, 9)
except OSError: pass
`,
		},
		{
			name: "asyncio with tasks, timers, subprocess and executor",
			setup: `
import asyncio
loop = asyncio.new_event_loop()
ticks = []
async def ticker():
    while True:
        ticks.append(len(ticks)); await asyncio.sleep(0.01)
async def upper():
    p = await asyncio.create_subprocess_exec('tr', '[:lower:]', '[:upper:]', stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    await queue.get()
    out, _ = await p.communicate(b'shout')
    return out, p.returncode
queue = asyncio.Queue()
t = threading.Thread(target=loop.run_forever, daemon=True); t.start()
tick = asyncio.run_coroutine_threadsafe(ticker(), loop)
job = asyncio.run_coroutine_threadsafe(upper(), loop)
until(lambda: len(ticks) > 5)
`,
			peek: `n = len(ticks); until(lambda: len(ticks) > n + 3, 'ticks'); same((job.done(), tick.done()), (False, False)); same(ticks, list(range(len(ticks))))`,
			check: `
loop.call_soon_threadsafe(queue.put_nowait, 1); same(job.result(10), (b'SHOUT', 0))
async def twice(x): return await loop.run_in_executor(None, lambda: 2 * x)
same(asyncio.run_coroutine_threadsafe(twice(21), loop).result(10), 42)
`,
			spoil: `loop.call_soon_threadsafe(tick.cancel)`,
		},
		{
			name: "unix servers with names, threads that wait in accept, and SO_PEERCRED",
			setup: `
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile: self.wfile.write(line.upper()); self.wfile.flush()
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): daemon_threads = True
os.mkdir('/tmp/u'); os.chdir('/tmp/u')
srv = Server('srv.sock', Echo); os.chmod('srv.sock', 0o660); os.chown('srv.sock', 33, 44)
threading.Thread(target=srv.serve_forever, daemon=True).start()
def dial(name):
    s = socket.socket(socket.AF_UNIX); s.connect(name); return s
def ask(s, m):
    s.send(m + b'\n'); same(s.recv(100), m.upper() + b'\n')
def other():
    os.setgid(44); os.setuid(33); s = dial('/tmp/u/srv.sock'); ask(s, b'i am 33'); socket.send_fds(b, [b'x'], [s.fileno()]); time.sleep(1000)
a, b = socket.socketpair()
k = child(other); s2 = socket.socket(fileno=socket.recv_fds(a, 1, 1)[1][0])
s1 = dial('srv.sock'); ask(s1, b'hello')
l = socket.socket(socket.AF_UNIX); l.bind('\0waiting'); l.listen(0); w = dial('\0waiting')
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); log.bind('log'); out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); out.connect('log'); out.send(b'logged')
`,
			peek: `
ask(s1, b'again'); ask(s2, b'and again')
st = os.stat('srv.sock'); same((oct(st.st_mode), st.st_uid, st.st_gid), ('0o140660', 33, 44))
same((s1.getpeername(), l.getsockname(), srv.socket.getsockname()), ('srv.sock', b'\0waiting', 'srv.sock'))
same(struct.unpack('3i', s1.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)), (os.getpid(), 0, 0))
same(log.recv(100, socket.MSG_PEEK), b'logged')
`,
			check: `
ask(dial('srv.sock'), b'new'); ask(dial('/tmp/u/srv.sock'), b'newer')
x = l.accept()[0]; w.send(b'w'); same(x.recv(9), b'w'); x.close(); same(w.recv(9), b'')
same(log.recv(100), b'logged'); out.send(b'more'); same(log.recv(100), b'more')
`,
			spoil: `
for f in ('srv.sock', 'log'):
    try: os.unlink(f)
    except OSError: pass
s1.close(); os.kill(k, 9)
`,
		},
		{
			name: "TCP over IPv4 and IPv6: an HTTP server, keep-alive clients, data on its way, a backlog",
			setup: `
import http.server, http.client
served = []
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = (self.path * 100).encode(); served.append(self.path)
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
class V6(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6
servers = [http.server.ThreadingHTTPServer(('127.0.0.1', 8080), Handler), V6(('::1', 8080), Handler)]
for s in servers: threading.Thread(target=s.serve_forever, daemon=True).start()
clients = [http.client.HTTPConnection(h, 8080) for h in ('127.0.0.1', '::1')]
def get(c, path):
    c.request('GET', path); r = c.getresponse(); same((r.status, r.read()), (200, (path * 100).encode()))
for c in clients: get(c, '/first')
socks = [c.sock for c in clients]
l = socket.create_server(('127.0.0.1', 9000), backlog=5)
def kid():
    c = socket.create_connection(('127.0.0.1', 9000))
    big = bytes(range(256)) * 40000; sent = 0
    c.sendall(big); c.shutdown(socket.SHUT_WR)
    os._exit(3 if c.recv(10) == b'thanks' else 4)
k = child(kid); full = l.accept()[0]
until(lambda: len(full.recv(100000, socket.MSG_PEEK)) > 30000, 'data')
waiting = [socket.create_connection(('127.0.0.1', 9000)) for _ in range(3)]
ep = select.epoll(); ep.register(full.fileno(), select.EPOLLIN); ep.register(l.fileno(), select.EPOLLIN)
`,
			peek: `
for c in clients: get(c, '/again')
same([c.sock for c in clients], socks)
same(sorted(ep.poll(0)), sorted([(full.fileno(), select.EPOLLIN), (l.fileno(), select.EPOLLIN)]))
`,
			check: `
for h in ('127.0.0.1', '::1'): get(http.client.HTTPConnection(h, 8080), '/new')
got = b''
while True:
    d = full.recv(1 << 20)
    if not d: break
    got += d
same(got == bytes(range(256)) * 40000, True); full.send(b'thanks'); same(os.waitpid(k, 0), (k, 3 << 8))
accepted = [l.accept()[0] for _ in range(3)]
for a in accepted: a.send(str(a.getpeername()[1]).encode())
same([c.recv(10) for c in waiting], [str(c.getsockname()[1]).encode() for c in waiting])
same(ep.poll(0), [(full.fileno(), select.EPOLLIN)])
`,
			spoil: `
for c in clients: c.close()
try: os.kill(k, 9)
except OSError: pass
`,
		},
		{
			name: "more descriptors than are asked about at once, some for other programs",
			setup: `
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
zero = os.open('/dev/zero', os.O_RDONLY)
for i in range(900): os.dup2(zero, 100 + i, inheritable=i % 3 == 0)
for i in range(0, 900, 7): os.close(100 + i)
def passed(): return [i for i in range(900) if i % 7 and os.get_inheritable(100 + i)]
`,
			peek: `same(passed(), [i for i in range(0, 900, 3) if i % 7])`,
			check: `
got = subprocess.run(['ls', '/proc/self/fd'], close_fds=False, stdout=subprocess.PIPE).stdout.split()
same([int(n) - 100 for n in sorted(got, key=int) if 100 <= int(n) < 1000], passed())
`,
			spoil: `os.closerange(100, 1000)`,
		},
		{
			name: "options of TCP connections that were set after they came about",
			setup: `
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s = l.accept()[0]
OPTIONS = {3: 1, 4: 77, 5: 33, 6: 7, 7: 9, 8: 41, 18: 60000, 25: 70000} # TCP_CORK, _KEEPIDLE, _KEEPINTVL, _KEEPCNT, _SYNCNT, _LINGER2, _USER_TIMEOUT, _NOTSENT_LOWAT
for x in (c, s):
    for k, v in OPTIONS.items(): x.setsockopt(socket.IPPROTO_TCP, k, v)
`,
			peek:  `same([{k: x.getsockopt(socket.IPPROTO_TCP, k) for k in OPTIONS} for x in (c, s)], [OPTIONS] * 2)`,
			check: `c.setsockopt(6, 3, 0); c.send(b'x'); same(s.recv(9), b'x')`,
			spoil: `c.setsockopt(6, 7, 2)`,
		},
		{
			name: "unix sockets whose directories were removed, renamed or replaced, or that were bound in a changed root",
			setup: `
import shutil
S, U = socket, socket.AF_UNIX
def serve(at, cwd='/'):
    os.chdir(cwd); l = S.socket(U); l.bind(at); l.listen(); c = S.socket(U); c.connect(at); a, _ = l.accept(); a.send(b'hello'); os.chdir('/'); return l, c, a
for d in ('removed/a/b', 'renamed/a', 'replaced', 'lost', 'relative/a', 'jail/in'): os.makedirs('/srv/' + d)
removed, renamed, replaced, lost, relative = serve('/srv/removed/a/b/s'), serve('/srv/renamed/a/s'), serve('/srv/replaced/s'), serve('/srv/lost/s'), serve('a/s', '/srv/relative')
for s in lost[0], lost[2]: s.close() # who is connected to that is told of the name
early = S.socket(U); early.bind('/srv/lost/early'); early.connect('/srv/renamed/a/s'); early.send(b'early'); early.close()
shutil.rmtree('/srv/removed'); shutil.rmtree('/srv/lost'); os.rename('/srv/renamed', '/srv/elsewhere'); shutil.rmtree('/srv/replaced'); open('/srv/replaced', 'w').close()
os.rename('/srv/relative/a', '/srv/relative/b')
r, w = os.pipe(); answers, told = os.pipe()
def jailed():
    os.chroot('/srv/jail'); l, c, a = serve('/in/s')
    while os.read(r, 1): os.write(told, repr((l.getsockname(), c.getpeername(), c.recv(9, S.MSG_PEEK))).encode())
k = child(jailed)
def ask(): os.write(w, b'?'); return eval(os.read(answers, 1000))
def connects(path):
    x = S.socket(U); x.settimeout(5)
    try: x.connect(path); return True
    except OSError: return False
def files(): return [(d, sorted(n), sorted(names), os.stat(d).st_mtime_ns) for d, n, names in sorted(os.walk('/srv'))] + sorted(os.listdir('/')) + [os.stat('/').st_mtime_ns, os.path.isfile('/srv/replaced')]
os.makedirs('/srv/' + 'far/' * 40); os.chdir('/srv/' + 'far/' * 40); sink = S.socket(U, S.SOCK_DGRAM); sink.bind('s'); src = S.socket(U, S.SOCK_DGRAM); src.sendto(b'unread', 's'); os.chdir('/')
all = {'/srv/removed/a/b/s': removed, '/srv/renamed/a/s': renamed, '/srv/replaced/s': replaced, 'a/s': relative}
ask(); was = files()
`,
			peek: `
for at, (l, c, a) in all.items(): same([l.getsockname(), c.getpeername(), a.getsockname(), c.recv(9, S.MSG_PEEK)], [at, at, at, b'hello'])
same(sink.recv(9, S.MSG_PEEK), b'unread'); same((lost[1].getpeername(), lost[1].recv(9, S.MSG_PEEK)), ('/srv/lost/s', b'hello')); same(ask(), ('/in/s', '/in/s', b'hello')); same(files(), was)
`,
			check: `
for l, c, a in all.values(): c.send(b'back'); same(a.recv(9), b'back')
x, at = renamed[0].accept(); same((at, x.recv(9), x.recv(9)), ('/srv/lost/early', b'early', b''))
same([connects(p) for p in ('/srv/elsewhere/a/s', '/srv/relative/b/s', '/srv/jail/in/s', '/srv/renamed/a/s')], [True, True, True, False])
same(lost[1].recv(9) + lost[1].recv(9), b'hello')
`,
			spoil: `
for s in removed + renamed + replaced + relative: s.close()
os.kill(k, 9); shutil.rmtree('/srv/jail'); os.remove('/srv/replaced')
`,
		},
		{
			name: "UDP with unread datagrams, netlink, and a thousand connections",
			setup: `
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 5353))
u.setsockopt(socket.SOL_SOCKET, 37, 0x18) # SO_TIMESTAMPING: SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_RX_SOFTWARE
c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); c.connect(u.getsockname()); c.send(b'one'); c.send(b'two')
nl = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); nl.bind((0, 0)); name = nl.getsockname()
l = socket.create_server(('127.0.0.1', 9000), backlog=100)
pairs = []
for i in range(500):
    x = socket.create_connection(('127.0.0.1', 9000)); y = l.accept()[0]; x.send(b'%d' % i); pairs.append((x, y))
`,
			peek: `
same(u.recvfrom(10, socket.MSG_PEEK), (b'one', c.getsockname())); same(u.getsockopt(socket.SOL_SOCKET, 37), 0x18); same(nl.getsockname(), name)
same([y.recv(10, socket.MSG_PEEK) for x, y in pairs], [b'%d' % i for i in range(500)])
`,
			check: `
same((u.recvfrom(10), u.recvfrom(10)), ((b'one', c.getsockname()), (b'two', c.getsockname())))
c.send(b'three'); data, told, _, _ = u.recvmsg(10, 1000); same((data, [t for _, t, _ in told]), (b'three', [37]))
nl.send(struct.pack('IHHII', 20, 18, 0x301, 1, 0) + b'\0' * 4); same(len(nl.recv(65536)) > 100, True)
for i, (x, y) in enumerate(pairs):
    same(y.recv(10), b'%d' % i); y.send(b'back'); same(x.recv(10), b'back')
`,
			spoil: `
for x, y in pairs: x.close(); y.close()
u.setblocking(False)
try: u.recv(10)
except OSError: pass
`,
		},
	})
}
