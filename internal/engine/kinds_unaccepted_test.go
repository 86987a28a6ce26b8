package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
)

// Servers that are behind: requests wait in their queues, whole or in part, of
// clients that wait for the answer or have gone.
func TestKindsOfUnaccepted(t *testing.T) {
	r, err := acceptqueue.Open()
	if fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	check(t, err)
	r.Close()
	playAll(t, []scene{{
		name: "connections with requests that were not accepted yet, of TCP and unix sockets, in their order",
		setup: `
def server(fam, addr, n=100):
    l = socket.socket(fam); l.bind(addr); l.listen(n); return l
def client(l, data, fam=None):
    c = socket.socket(fam or l.family); c.connect(l.getsockname()); c.sendall(data); return c
listeners = [server(socket.AF_INET, ('127.0.0.1', 8300)), server(socket.AF_INET6, ('::1', 8300)), server(socket.AF_UNIX, '/tmp/behind')]
for l in listeners: l.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE if l.family != socket.AF_UNIX else socket.SO_PASSCRED, 1)
clients = [[client(l, b'request %d ' % i + b'z' * (i * 1000)) for i in range(20)] for l in listeners]
for l in listeners: c = client(l, b'gone'); c.close()
def other():
    for c in sum(clients, []): c.close()
    os.setgid(44); os.setuid(33); c = client(listeners[2], b'i am 33'); a.send(b'.'); same(c.recv(100), b'hello'); os._exit(9)
os.chmod('/tmp/behind', 0o777)
a, b = socket.socketpair(); k = child(other); b.recv(1)
passing = server(socket.AF_UNIX, '\0passing'); r, w = os.pipe(); os.write(w, b'piped')
c = client(passing, b'first'); socket.send_fds(c, [b'files'], [r, w, passing.fileno()]); c.close()
time.sleep(0.05)
`,
		peek: `same([select.select([l], [], [], 0)[0] for l in listeners], [[l] for l in listeners])`,
		check: `
def take(l, want):
    l.settimeout(5); s = l.accept()[0]; s.settimeout(5); got = b''
    while len(got) < len(want): got += s.recv(65536)
    same(got, want); same(s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE if l.family != socket.AF_UNIX else socket.SO_PASSCRED), 1); return s
for l, some in zip(listeners, clients):
    for i, c in enumerate(some):
        s = take(l, b'request %d ' % i + b'z' * (i * 1000)); s.sendall(b'answer %d' % i); same(c.recv(100), b'answer %d' % i)
        c.sendall(b'more'); same(s.recv(100), b'more'); c.close(); same(s.recv(100), b''); s.close()
    s = take(l, b'gone'); same(s.recv(1), b'')
s = take(listeners[2], b'i am 33'); same(struct.unpack('3i', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)), (k, 33, 44))
s.send(b'hello'); same(os.waitpid(k, 0), (k, 9 << 8))
s = passing.accept()[0]; same(s.recv(5), b'first'); data, fds, _, _ = socket.recv_fds(s, 100, 9); same((data, len(fds)), (b'files', 3))
os.write(fds[1], b' more'); same(os.read(r, 100), b'piped more'); os.write(w, b'x'); same(os.read(fds[0], 9), b'x')
l = socket.socket(fileno=fds[2]); c = client(passing, b'hello'); same(l.accept()[0].recv(9), b'hello')
`,
		spoil: `for l in listeners: l.close()`,
	}})
}
