package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// servers are processes of their own: HTTP over IPv4 and IPv6 by threads, lines
// by asyncio over TCP, and counters over a unix socket. Clients ask them as fast
// as they can, each over a connection that it keeps or over a new one each
// time, and notice every answer that is not right.
const servers = `
import asyncio, http.client, http.server, socketserver, threading
body = bytes(range(256)) * 300
class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
class V6(http.server.ThreadingHTTPServer): address_family = socket.AF_INET6
class Counter(socketserver.StreamRequestHandler):
    def handle(self):
        n = 0
        for line in self.rfile:
            n += int(line); self.wfile.write(b'%d\n' % n); self.wfile.flush()
class Counters(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): daemon_threads = True
async def lines(r, w):
    while l := await r.readline(): w.write(l.upper()); await w.drain()
    w.close()
async def loop(ready):
    s = await asyncio.start_server(lines, '127.0.0.1', 7000); ready.set(); await s.serve_forever()
def pages(v6): (V6(('::1', 8080), Pages) if v6 else http.server.ThreadingHTTPServer(('127.0.0.1', 8080), Pages)).serve_forever()
ready = threading.Event()
kids = [child(lambda: pages(False)), child(lambda: pages(True)), child(lambda: asyncio.run(loop(ready))), child(lambda: Counters('/tmp/counters', Counter).serve_forever())]
def reached(to, family=socket.AF_INET):
    try: s = socket.socket(family); s.connect(to); return True
    except OSError: return False
until(lambda: reached(('127.0.0.1', 8080)) and reached(('::1', 8080), socket.AF_INET6) and reached(('127.0.0.1', 7000)) and reached('/tmp/counters', socket.AF_UNIX), 'servers')
counts, wrong = {}, []
def client(name, ask):
    counts[name] = 0
    try:
        while True: ask(); counts[name] += 1
    except BaseException: wrong.append((name, traceback.format_exc()))
def page(c):
    c.request('GET', '/'); r = c.getresponse(); same((r.status, r.read() == body), (200, True))
def kept(host):
    c = http.client.HTTPConnection(host, 8080, timeout=30); return lambda: page(c)
def new():
    c = http.client.HTTPConnection('127.0.0.1', 8080, timeout=30); page(c); c.close(); time.sleep(0.01)
def upper():
    s = socket.create_connection(('127.0.0.1', 7000), 30); f = s.makefile('rb'); n = [0]
    def ask(): n[0] += 1; s.sendall(b'line %d\n' % n[0]); same(f.readline(), b'LINE %d\n' % n[0])
    return ask
def counter():
    s = socket.socket(socket.AF_UNIX); s.settimeout(30); s.connect('/tmp/counters'); f = s.makefile('rb'); n = [0]
    def ask(): n[0] += 3; s.sendall(b'3\n'); same(int(f.readline()), n[0])
    return ask
for name, ask in dict(v4=kept('127.0.0.1'), v6=kept('::1'), new=new, lines=upper(), counter=counter()).items():
    threading.Thread(target=client, args=(name, ask), daemon=True).start()
until(lambda: len(counts) == 5 and all(counts.values()), 'clients')
`

// goesOn passes when every client has had some more right answers.
const goesOn = `
before = dict(counts)
until(lambda: wrong or all(counts[n] > before[n] + 5 for n in counts), 'answers', 30)
same(wrong, [])
`

// Checkpoints, rollbacks and forks of servers under load: no client sees an
// error, in the live processes or in any copy.
func TestServersUnderLoad(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("servers", servers)
	var kept []control.Checkpoint
	for range 10 {
		kept = append(kept, h.checkpoint(box))
		x.must("the live clients", goesOn)
	}
	for _, i := range []int{9, 2, 6} {
		_, ss := h.rollback(box, kept[i].ID)
		x = ss[x.id]
		x.must("the clients after a rollback", goesOn)
	}
	for _, f := range h.fork(box, kept[4].ID, 2) {
		h.adopt(f, x.id).must("the clients of a fork", goesOn)
		h.remove(f)
	}
	again := h.checkpoint(box)
	_, ss := h.rollback(box, again.ID)
	ss[x.id].must("the clients after another rollback", goesOn)
}
