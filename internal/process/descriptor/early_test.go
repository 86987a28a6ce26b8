package descriptor

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
)

// Clients that have sent, closed one way or closed before they were accepted.
// Listening sockets are 50 to 55, clients from 60 on.
const earlyScript = `
import os, sys, socket, time
S = socket
at = 60
def put(s, n):
    fd = s if isinstance(s, int) else s.detach()
    os.dup2(fd, n, inheritable=False); os.close(fd)
def keep(s):
    global at
    put(s, at); at += 1
def listen(n, fam, addr, typ=S.SOCK_STREAM):
    l = S.socket(fam, typ); l.bind(addr); l.listen(20); a = l.getsockname(); put(l, n); return a
def connect(fam, addr, data=b"", typ=S.SOCK_STREAM):
    c = S.socket(fam, typ); c.connect(addr)
    if data: c.send(data)
    return c
for n, fam, host in ((50, S.AF_INET, "127.0.0.1"), (51, S.AF_INET6, "::1"), (52, S.AF_INET6, "::")):
    a = listen(n, fam, (host, 8000 + n)); to = fam
    if n == 52: a, to = ("127.0.0.1", 8052), S.AF_INET
    for data in (b"first", b"", b"third" * 500, b"x"): keep(connect(to, a, data))
    c = connect(to, a, b"no more"); c.shutdown(S.SHUT_WR); keep(c)
    c = S.socket(to); c.bind((host if n < 52 else "127.0.0.1", 9000 + n)); c.connect(a); c.send(b"last words"); c.close()
c = connect(S.AF_INET, ("127.0.0.1", 8050)); c.setblocking(False) # more than the other end takes
part = bytes((i * 31 + i // 253) & 255 for i in range(65536)); total = 0
try:
    while True: total += c.send(part[total % 65536:])
except BlockingIOError: pass
keep(c)
for n, typ, name in ((53, S.SOCK_STREAM, "/tmp/early"), (54, S.SOCK_SEQPACKET, "\0early"), (55, S.SOCK_STREAM, "\0mixed")):
    listen(n, S.AF_UNIX, name, typ)
    keep(connect(S.AF_UNIX, name, b"first", typ)); keep(connect(S.AF_UNIX, name, typ=typ))
    c = connect(S.AF_UNIX, name, b"one", typ); c.send(b"two"); c.shutdown(S.SHUT_WR); keep(c)
    c = S.socket(S.AF_UNIX, typ); c.bind("\0gone%d" % n); c.connect(name); c.send(b"last words"); c.close()
    if n == 55: connect(S.AF_UNIX, name).close(); keep(connect(S.AF_UNIX, name, b"y" * 150000))
time.sleep(0.05)
print("ready", flush=True)
for line in sys.stdin: print(total, flush=True)
`

// openQueue opens what reads connections that nobody has accepted, until the test's end.
func openQueue(t *testing.T) *acceptqueue.Reader {
	reads, err := acceptqueue.Open()
	if fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reads.Close() })
	return reads
}

func TestUnaccepted(t *testing.T) {
	b := newBody(t)
	reads := openQueue(t)
	p := b.python(t, earlyScript)
	p.reads = reads
	want := descriptions(t, p.Process.Pid)
	var r *Result
	for range 3 {
		r = p.mustCapture(t)
	}
	_, err := p.stdin.WriteString("\n")
	if err != nil {
		t.Fatal(err)
	}
	var total int
	if _, err := fmt.Fscan(p.stdout, &total); err != nil {
		t.Fatal(err)
	}
	again := newBody(t).restore(t, r)
	sameTable(t, want, again)
	for _, who := range []struct {
		name string
		*restored
	}{{"live", &restored{pidfd: p.pidfd, pid: p.Process.Pid, t: t}}, {"restored", again}} {
		t.Run(who.name, func(t *testing.T) {
			client := 60
			for _, n := range []int{50, 51, 52} {
				for i, data := range []string{"first", "", string(bytes.Repeat([]byte("third"), 500)), "x", "no more"} {
					checkEarly(t, who.restored, n, client, []string{data}, i == 4)
					client++
				}
				from := checkEarly(t, who.restored, n, -1, []string{"last words"}, true)
				if got := inetAddress(from); got.Port() != uint16(9000+n) || !got.Addr().IsLoopback() {
					t.Errorf("the closed client of %d was %v", n, got)
				}
			}
			checkFullEarly(t, who.restored, client, total)
			client++
			for _, n := range []int{53, 54, 55} {
				for i, data := range [][]string{{"first"}, {""}, {"one", "two"}} {
					checkEarly(t, who.restored, n, client, data, i == 2)
					client++
				}
				if from := checkEarly(t, who.restored, n, -1, []string{"last words"}, true); string(from) != fmt.Sprintf("\x01\x00\x00gone%d", n) {
					t.Errorf("the closed client of %d was %q", n, from)
				}
				if n == 55 {
					checkEarly(t, who.restored, n, -1, []string{""}, true)
					checkEarly(t, who.restored, n, client, []string{string(bytes.Repeat([]byte("y"), 150000))}, false)
				}
			}
		})
	}
}

// checkEarly accepts a connection, reads what it had received, and talks to the
// client, if there is one. It returns the client's address.
func checkEarly(t *testing.T, v *restored, listener, client int, want []string, ended bool) []byte {
	t.Helper()
	fd, err := acceptFrom(v.fd(listener))
	if err != nil {
		t.Errorf("accept from %d: %v", listener, err)
		return nil
	}
	defer unix.Close(fd)
	from, _ := addressFrom(fd, unix.SYS_GETPEERNAME)
	typ, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if typ == unix.SOCK_STREAM {
		all := ""
		for _, w := range want {
			all += w
		}
		want = []string{all}
	}
	for _, w := range want {
		got := make([]byte, len(w)+1)
		n := 0
		for n < len(w) {
			k, _, err := unix.Recvfrom(fd, got[n:], unix.MSG_DONTWAIT)
			if err != nil || k == 0 {
				t.Errorf("read from a connection of %d: %v, %d of %d bytes", listener, err, n, len(w))
				return from
			}
			n += k
		}
		if string(got[:n]) != w {
			t.Errorf("a connection of %d has %.20q, want %.20q", listener, got[:n], w)
		}
	}
	switch {
	case ended:
		expectEOF(t, fd)
	case client >= 0:
		exchange(t, v.fd(client), fd)
	}
	if client >= 0 {
		if _, err := unix.Write(fd, []byte("answer")); err != nil {
			t.Error(err)
		}
		expectRead(t, v.fd(client), "answer")
	}
	return from
}

// checkFullEarly reads all that a client had written, more than fits into the
// connection's window.
func checkFullEarly(t *testing.T, v *restored, client, total int) {
	t.Helper()
	fd, err := acceptFrom(v.fd(50))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	begin := time.Now()
	got := 0
	buf := make([]byte, 1<<16)
	for got < total {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("only %d of %d bytes came", got, total)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("read %d bytes (%v) after %d of %d", n, err, got, total)
		}
		for i, b := range buf[:n] {
			if j := (got + i) % 65536; b != byte(j*31+j/253) {
				t.Fatalf("byte %d is not what was written", got+i)
			}
		}
		got += n
	}
	exchange(t, v.fd(client), fd)
}

// Descriptors on their way in a connection that nobody accepted: those that are open
// elsewhere are the same descriptions again.
func TestUnacceptedWithDescriptors(t *testing.T) {
	b := newBody(t)
	reads := openQueue(t)
	p := b.python(t, `
import os, socket, sys
l = socket.socket(socket.AF_UNIX); l.bind("\0rights"); l.listen(); os.dup2(l.fileno(), 50)
c = socket.socket(socket.AF_UNIX); c.connect("\0rights"); os.dup2(c.fileno(), 51)
f = os.open("/etc/passwd", os.O_RDONLY); os.lseek(f, 5, 0); os.dup2(f, 52)
r, w = os.pipe(); os.write(w, b"in the pipe"); os.dup2(r, 53); os.dup2(w, 54)
c.send(b"before"); socket.send_fds(c, [b"with"], [52, 53, 51]); c.send(b"behind"); socket.send_fds(c, [b"x"], [50])
g = socket.socket(socket.AF_UNIX); g.connect("\0rights"); socket.send_fds(g, [b"gone"], [54]); g.close()
print("ready", flush=True); sys.stdin.read()`)
	p.reads = reads
	want := descriptions(t, p.Process.Pid)
	var r *Result
	for range 3 {
		r = p.mustCapture(t)
	}
	again := newBody(t).restore(t, r)
	sameTable(t, want, again)
	for _, who := range []struct {
		name string
		*restored
	}{{"live", &restored{pidfd: p.pidfd, pid: p.Process.Pid, t: t}}, {"restored", again}} {
		t.Run(who.name, func(t *testing.T) {
			for _, messages := range [][]carrying{
				{{"before", nil}, {"with", []int{52, 53, 51}}, {"behind", nil}, {"x", []int{50}}}, {{"gone", []int{54}}},
			} {
				fd, err := acceptFrom(who.fd(50))
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range messages {
					expectCarried(t, who.restored, fd, m.text, m.files)
				}
				_ = unix.Close(fd)
			}
		})
	}
}

// carrying is a message with descriptors.
type carrying struct {
	text  string
	files []int
}

// expectCarried receives what is next on a connection.
func expectCarried(t *testing.T, v *restored, fd int, text string, carried []int) {
	t.Helper()
	data, control := make([]byte, len(text)), make([]byte, 200)
	n, k, _, _, err := unix.Recvmsg(fd, data, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil || string(data[:n]) != text {
		t.Fatalf("%q came (%v), not %q", data[:max(n, 0)], err, text)
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(control[:k]); err != nil {
		t.Fatal(err)
	} else if len(messages) > 0 {
		if fds, err = unix.ParseUnixRights(&messages[0]); err != nil {
			t.Fatal(err)
		}
	}
	defer closeAll(fds)
	if len(fds) != len(carried) {
		t.Fatalf("%d descriptors came with %q, not %d", len(fds), text, len(carried))
	}
	for i, at := range carried {
		if same, err := sameDescription(fds[i], v.fd(at)); err != nil || !same {
			t.Errorf("descriptor %d of %q is not %d (%v)", i, text, at, err)
		}
	}
}

// What is open nowhere else cannot be looked into, and what a process alone can open
// not be sent before it has.
func TestUnacceptedWithRefusedDescriptors(t *testing.T) {
	b := newBody(t)
	reads := openQueue(t)
	for _, what := range []string{`open("/etc/passwd"), c.fileno()`, `open("/proc/self/stat")); os.dup2(fd, 60`} {
		p := b.python(t, `
import os, socket, sys
l = socket.socket(socket.AF_UNIX); l.bind("\0refused%d" % os.getpid()); l.listen(); c = socket.socket(socket.AF_UNIX); c.connect(l.getsockname())
def open(name): return os.open(name, os.O_RDONLY)
def send(*fds):
    global fd
    socket.send_fds(c, [b"x"], fds); fd = fds[0]
send(`+what+`); os.close(fd)
print("ready", flush=True); sys.stdin.read()`)
		p.reads = reads
		if r, err := p.capture(t); !fault.Is(err, fault.Uncapturable) || !fault.Passes(err) {
			t.Errorf("%s: %v (captured: %t)", what, err, r != nil)
		}
	}
}

// Neither is somebody outside who has the other end of what is on its way so.
func TestUnacceptedWithOtherEnds(t *testing.T) {
	b := newBody(t)
	reads := openQueue(t)
	for _, what := range []string{
		`far = socket.socket(socket.AF_UNIX); far.connect(l.getsockname()); send(far); far.close()`,
		`near, far = socket.socketpair(); send(far); far.close()`,
		`r, w = os.pipe(); send(r); os.close(r)`,
		`m, s = os.openpty(); send(m); os.close(m)`,
	} {
		p := b.python(t, `
import os, socket, sys
l = socket.socket(socket.AF_UNIX); l.bind("\0ends%d" % os.getpid()); l.listen(); c = socket.socket(socket.AF_UNIX); c.connect(l.getsockname())
def send(x): socket.send_fds(c, [b"x"], [x if type(x) is int else x.fileno()])
`+what+`
print("ready", flush=True); sys.stdin.read()`)
		p.reads = reads
		if _, err := p.capture(t); !fault.Passes(err) || !strings.Contains(err.Error(), "on its way that is open nowhere else") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
