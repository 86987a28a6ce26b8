package engine_test

import "testing"

func TestKindsOfSockets(t *testing.T) {
	playAll(t, []scene{
		{
			name: "socket pairs of a tree, with unread data both ways and descriptors on their way",
			setup: `
a, b = socket.socketpair()
c, d = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
	})
}
