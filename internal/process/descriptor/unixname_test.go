package descriptor

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const namesScript = `
import os, sys, socket
S = socket
def put(s, n):
    fd = s if isinstance(s, int) else s.detach()
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def so(n): return S.socket(fileno=os.dup(n))
def listen(name, typ=S.SOCK_STREAM, backlog=7):
    l = S.socket(S.AF_UNIX, typ); l.bind(name); l.listen(backlog); return l
def client(name, own=None, typ=S.SOCK_STREAM):
    c = S.socket(S.AF_UNIX, typ)
    if own: c.bind(own)
    c.connect(name); return c
os.mkdir("/tmp/d"); os.chdir("/tmp/d")
# by an absolute path: accepted, waiting, one of them with a name
put(listen("/tmp/d/abs.sock"), 50); os.chmod("/tmp/d/abs.sock", 0o600)
put(client("/tmp/d/abs.sock"), 51); put(so(50).accept()[0], 52)
os.write(51, b"to server"); os.write(52, b"to client")
put(client("/tmp/d/abs.sock", "/tmp/d/client.sock"), 53); put(client("abs.sock"), 54)
# by a relative path, and what listened is gone
l = listen("rel.sock", S.SOCK_SEQPACKET); put(client("rel.sock", typ=S.SOCK_SEQPACKET), 55); put(l.accept()[0], 56); l.close()
os.write(55, b"one"); os.write(55, b"two")
# abstract; the client is gone
put(listen("\0abstract", backlog=0), 57); c = client("\0abstract"); put(so(57).accept()[0], 58); c.send(b"left"); c.close()
put(client("\0abstract"), 59)
# deleted, replaced, renamed
put(listen("gone.sock"), 60); put(client("gone.sock"), 61); put(so(60).accept()[0], 62); os.unlink("gone.sock")
put(listen("gone.sock"), 63)
put(listen("first.sock"), 64); os.rename("first.sock", "second.sock"); os.chmod("second.sock", 0o666)
# datagrams
def dgram(name=None):
    d = S.socket(S.AF_UNIX, S.SOCK_DGRAM)
    if name: d.bind(name)
    return d
put(dgram("log.sock"), 70); put(dgram(), 71); so(71).connect("log.sock"); put(dgram("reply.sock"), 72)
os.write(71, b"unnamed"); so(72).sendto(b"named", "/tmp/d/log.sock"); os.write(71, b"again")
put(dgram("\0ab"), 73); so(72).connect("\0ab"); os.write(72, b"to abstract")
# an abstract name is one of each type
put(dgram("\0abstract"), 74); put(dgram(), 75); so(75).connect("\0abstract"); os.write(75, b"datagram")
put(listen("\0abstract", S.SOCK_SEQPACKET), 76); put(client("\0abstract", typ=S.SOCK_SEQPACKET), 77); put(so(76).accept()[0], 78)
print("ready", flush=True)
sys.stdin.read()
`

func TestUnixNames(t *testing.T) {
	b := newBody(t)
	p := b.python(t, namesScript)
	b.pids = []int{p.Process.Pid}
	want := descriptions(t, p.Process.Pid)
	var r *Result
	for range 3 {
		r = p.mustCapture(t)
	}
	// The copy has the files as they were, and a network of its own.
	other := newBody(t)
	other.pids = b.pids
	if err := os.Mkdir(other.path("/tmp/d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"abs.sock", "client.sock", "rel.sock", "gone.sock", "second.sock", "log.sock", "reply.sock"} {
		if err := unix.Mknod(other.path("/tmp/d/"+f), unix.S_IFSOCK|0o700, 0); err != nil {
			t.Fatal(err)
		}
	}
	v := other.restore(t, r)
	sameTable(t, want, v)
	for _, who := range []struct {
		name string
		b    *body
		*restored
	}{{"live", b, &restored{pidfd: p.pidfd, pid: p.Process.Pid, t: t}}, {"restored", other, v}} {
		t.Run(who.name, func(t *testing.T) { checkNames(t, who.b, who.restored) })
	}
}

func checkNames(t *testing.T, b *body, v *restored) {
	names := map[int]string{50: "/tmp/d/abs.sock", 52: "/tmp/d/abs.sock", 53: "/tmp/d/client.sock", 56: "rel.sock", 57: "@abstract", 58: "@abstract", 60: "gone.sock", 62: "gone.sock", 63: "gone.sock", 64: "first.sock", 70: "log.sock", 72: "reply.sock", 73: "@ab", 74: "@abstract", 76: "@abstract", 78: "@abstract"}
	for n, want := range names {
		a, err := unix.Getsockname(v.fd(n))
		if u, ok := a.(*unix.SockaddrUnix); err != nil || !ok || u.Name != want {
			t.Errorf("descriptor %d has the name %+v (%v), want %s", n, a, err, want)
		}
	}
	for n, want := range map[int]string{51: "/tmp/d/abs.sock", 53: "/tmp/d/abs.sock", 55: "rel.sock", 61: "gone.sock", 71: "log.sock", 72: "@ab", 75: "@abstract", 77: "@abstract"} {
		a, err := unix.Getpeername(v.fd(n))
		if u, ok := a.(*unix.SockaddrUnix); err != nil || !ok || u.Name != want {
			t.Errorf("descriptor %d is connected to %+v (%v), want %s", n, a, err, want)
		}
	}
	for f, mode := range map[string]os.FileMode{"abs.sock": 0o600, "second.sock": 0o666, "rel.sock": 0o755, "gone.sock": 0o755, "log.sock": 0o755} {
		st, err := os.Lstat(b.path("/tmp/d/" + f))
		if err != nil || st.Mode() != os.ModeSocket|mode {
			t.Errorf("%s: %v (%v), want %v", f, st, err, mode)
		}
	}
	if l, err := os.ReadDir(b.path("/tmp/d")); err != nil || len(l) != 7 {
		t.Errorf("directory has %v (%v)", l, err)
	}
	expectRead(t, v.fd(52), "to server")
	expectRead(t, v.fd(51), "to client")
	expectRead(t, v.fd(56), "one")
	expectRead(t, v.fd(56), "two")
	expectRead(t, v.fd(58), "left")
	expectEOF(t, v.fd(58))
	expectConnected(t, v.fd(61), v.fd(62))
	// Those that wait are accepted in their order.
	for _, n := range []int{53, 54} {
		c, err := acceptFrom(v.fd(50))
		if err != nil {
			t.Fatal(err)
		}
		expectConnected(t, v.fd(n), c)
		_ = unix.Close(c)
	}
	if c, err := acceptFrom(v.fd(57)); err != nil {
		t.Error(err)
	} else {
		expectConnected(t, v.fd(59), c)
		_ = unix.Close(c)
	}
	for _, m := range []string{"unnamed", "named", "again"} {
		data := make([]byte, 64)
		n, from, err := unix.Recvfrom(v.fd(70), data, unix.MSG_DONTWAIT)
		u, _ := from.(*unix.SockaddrUnix)
		if err != nil || string(data[:n]) != m || (m == "named") != (u != nil && u.Name == "reply.sock") {
			t.Errorf("datagram %q from %+v (%v), want %q", data[:max(n, 0)], from, err, m)
		}
	}
	expectRead(t, v.fd(73), "to abstract")
	expectRead(t, v.fd(74), "datagram")
	expectConnected(t, v.fd(77), v.fd(78))
	if _, err := unix.Write(v.fd(71), []byte("new")); err != nil {
		t.Error(err)
	}
	expectRead(t, v.fd(70), "new")
	// A file leads to the one that is bound to it.
	for f, n := range map[string]int{"abs.sock": 50, "gone.sock": 63, "second.sock": 64} {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Connect(c, &unix.SockaddrUnix{Name: b.path("/tmp/d/" + f)}); err != nil {
			t.Errorf("connect to %s: %v", f, err)
		} else if got, err := acceptFrom(v.fd(n)); err != nil {
			t.Errorf("%s: %v", f, err)
		} else {
			expectConnected(t, c, got)
			_ = unix.Close(got)
		}
		_ = unix.Close(c)
	}
}

func expectConnected(t *testing.T, a, b int) {
	t.Helper()
	for _, d := range [][2]int{{a, b}, {b, a}} {
		if _, err := unix.Write(d[0], []byte("hello")); err != nil {
			t.Errorf("write: %v", err)
			return
		}
		expectRead(t, d[1], "hello")
	}
}
