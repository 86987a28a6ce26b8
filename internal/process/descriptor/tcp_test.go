package descriptor

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/tcprepair"
)

const tcpScript = `
import os, sys, socket, struct, time, errno
S = socket
def put(s, n):
    fd = s if isinstance(s, int) else s.detach()
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def so(n): return S.socket(fileno=os.dup(n))
def listen(addr, backlog=9, fam=S.AF_INET):
    l = S.socket(fam); l.setsockopt(S.SOL_SOCKET, S.SO_REUSEADDR, 1); l.bind(addr); l.listen(backlog); return l
def connect(addr, fam=S.AF_INET, own=None):
    c = S.socket(fam)
    if own: c.bind(own)
    c.connect(addr); return c
put(listen(("127.0.0.1", 8080)), 50); so(50).setsockopt(S.IPPROTO_TCP, S.TCP_DEFER_ACCEPT, 0)
# an established pair with data both ways
put(connect(("127.0.0.1", 8080)), 51); put(so(50).accept()[0], 52)
so(51).setsockopt(S.IPPROTO_TCP, S.TCP_NODELAY, 1); so(52).setsockopt(S.SOL_SOCKET, S.SO_KEEPALIVE, 1); so(52).setsockopt(S.IPPROTO_TCP, S.TCP_KEEPIDLE, 77)
os.write(51, b"to server"); os.write(52, b"to client"); os.read(52, 3)
# a full one, whose reader has been told all
put(connect(("127.0.0.1", 8080)), 53); put(so(50).accept()[0], 54); os.set_blocking(53, False)
part = bytes((i * 31 + i // 253) & 255 for i in range(65536)); total = 0
try:
    while True: total += os.write(53, part[total % 65536:])
except BlockingIOError: pass
so(54).shutdown(S.SHUT_WR)
# the client has gone, with data left; the client has closed one way
put(connect(("127.0.0.1", 8080)), 55); put(so(50).accept()[0], 56); os.write(55, b"last words"); os.close(55)
put(connect(("127.0.0.1", 8080)), 57); put(so(50).accept()[0], 58); os.write(57, b"no more"); so(57).shutdown(S.SHUT_WR)
# IPv6, one with both families
put(listen(("::", 8081), fam=S.AF_INET6), 60); put(connect(("::1", 8081), S.AF_INET6), 61); put(so(60).accept()[0], 62); os.write(61, b"six")
own = S.socket(S.AF_INET6); own.bind(("::1", 0)); own.connect(("::1", 8081)); put(own, 86); put(so(60).accept()[0], 87) # IPV6_V6ONLY by its address
put(connect(("127.0.0.1", 8081)), 63); put(so(60).accept()[0], 64); os.write(64, b"four")
# ended: reset and not told, reset and told; closed both ways; refused
def reset():
    c = connect(("127.0.0.1", 8080)); s = so(50).accept()[0]; c.send(b"bye"); c.setsockopt(S.SOL_SOCKET, S.SO_LINGER, struct.pack("ii", 1, 0)); c.close(); return s
put(reset(), 67); s = reset()
assert s.getsockopt(S.SOL_SOCKET, S.SO_ERROR) == errno.ECONNRESET
put(s, 68)
c = connect(("127.0.0.1", 8080)); s = so(50).accept()[0]; c.close(); s.recv(1); s.shutdown(S.SHUT_WR); put(s, 69)
c = S.socket(); c.setblocking(False); c.connect_ex(("127.0.0.1", 1)); put(c, 70)
# waiting: two clients
put(connect(("127.0.0.1", 8080), own=("127.0.0.1", 41000)), 65); time.sleep(0.02); put(connect(("127.0.0.1", 8080)), 74); time.sleep(0.02); put(connect(("127.0.0.1", 8080)), 75); put(connect(("::1", 8081), S.AF_INET6), 66)
# waiting, and closed by the client
put(listen(("127.0.0.1", 8090)), 73); connect(("127.0.0.1", 8090)).close()
# waiting at one port, for one of IPv6 alone, one of IPv4, one of an address, one of all others
l = S.socket(S.AF_INET6); l.setsockopt(S.IPPROTO_IPV6, S.IPV6_V6ONLY, 1); l.bind(("::", 8091)); l.listen(9); put(l, 90)
put(listen(("127.0.0.1", 8091)), 91); put(connect(("::1", 8091), S.AF_INET6), 92); put(connect(("127.0.0.1", 8091)), 93)
for n, host in ((94, "0.0.0.0"), (95, "127.0.0.1")):
    l = S.socket(); l.setsockopt(S.SOL_SOCKET, S.SO_REUSEPORT, 1); l.bind((host, 8092)); l.listen(9); put(l, n)
for n in (96, 98, 100): put(connect(("127.0.0.2", 8092)), n); put(connect(("127.0.0.1", 8092)), n + 1)
# more waiting than may from now on
l = listen(("127.0.0.1", 8093)); [put(connect(("127.0.0.1", 8093)), n) for n in (110, 111, 112)]; l.listen(0); put(l, 109)
# bound, not bound
c = S.socket(); c.bind(("127.0.0.1", 8085)); put(c, 71); put(S.socket(), 72)
time.sleep(0.05)
print("ready", flush=True)
for line in sys.stdin: print(total, flush=True)
`

func TestTCP(t *testing.T) {
	b := newBody(t)
	p := b.python(t, tcpScript)
	want := descriptions(t, p.Process.Pid)
	var r *Result
	for range 3 {
		r = p.mustCapture(t)
	}
	other := newBody(t)
	v := other.restore(t, r)
	sameTable(t, want, v)
	var total int
	if f := fileAt(r, 0, 53); f != nil {
		total = len(f.Socket.TCP.Unsent)
	}
	for _, m := range fileAt(r, 0, 54).Socket.Queue {
		total += len(m.Data)
	}
	t.Logf("%d bytes in the full connection, %d of them not received", total, len(fileAt(r, 0, 53).Socket.TCP.Unsent))
	for _, who := range []struct {
		name string
		*restored
	}{{"live", &restored{pidfd: p.pidfd, pid: p.Process.Pid, t: t}}, {"restored", v}} {
		t.Run(who.name, func(t *testing.T) { checkTCP(t, who.restored, total) })
	}
}

func checkTCP(t *testing.T, v *restored, total int) {
	for n, want := range map[int]string{50: "127.0.0.1:8080", 52: "127.0.0.1:8080", 54: "127.0.0.1:8080", 56: "127.0.0.1:8080", 60: "[::]:8081", 62: "[::1]:8081", 64: "127.0.0.1:8081", 65: "127.0.0.1:41000", 71: "127.0.0.1:8085"} {
		a, err := addressFrom(v.fd(n), unix.SYS_GETSOCKNAME)
		if err != nil || inetAddress(a) != netip.MustParseAddrPort(want) {
			t.Errorf("descriptor %d has address %v (%v), want %s", n, inetAddress(a), err, want)
		}
	}
	for n, want := range map[int]int{60: 0, 61: 0, 62: 0, 66: 0, 86: 1, 87: 0} {
		if only, err := unix.GetsockoptInt(v.fd(n), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil || only != want {
			t.Errorf("IPV6_V6ONLY of %d is %d (%v)", n, only, err)
		}
	}
	for _, n := range []int{50, 51, 52, 53, 54, 56, 57, 58, 60, 62} {
		reuse, _ := unix.GetsockoptInt(v.fd(n), unix.SOL_SOCKET, unix.SO_REUSEADDR)
		if want := n == 50 || n == 60 || n%2 == 0; (reuse == 1) != want {
			t.Errorf("SO_REUSEADDR of %d is %d", n, reuse)
		}
	}
	if d, _ := unix.GetsockoptInt(v.fd(51), unix.IPPROTO_TCP, unix.TCP_NODELAY); d != 1 {
		t.Errorf("TCP_NODELAY is %d", d)
	}
	if d, _ := unix.GetsockoptInt(v.fd(52), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE); d != 77 {
		t.Errorf("TCP_KEEPIDLE is %d", d)
	}
	expectRead(t, v.fd(52), "server")
	expectRead(t, v.fd(51), "to client")
	exchange(t, v.fd(51), v.fd(52))
	checkFull(t, v, total)
	expectRead(t, v.fd(56), "last words")
	expectEOF(t, v.fd(56))
	expectRead(t, v.fd(58), "no more")
	expectEOF(t, v.fd(58))
	if _, err := unix.Write(v.fd(57), []byte("x")); err != unix.EPIPE {
		t.Errorf("write after shutdown: %v", err)
	}
	if _, err := unix.Write(v.fd(58), []byte("answer")); err != nil {
		t.Error(err)
	}
	expectRead(t, v.fd(57), "answer")
	expectRead(t, v.fd(62), "six")
	expectRead(t, v.fd(63), "four")
	exchange(t, v.fd(63), v.fd(64))
	exchange(t, v.fd(61), v.fd(62))
	for _, w := range [][2]int{{50, 65}, {50, 74}, {50, 75}, {60, 66}, {90, 92}, {91, 93}} {
		got, err := acceptFrom(v.fd(w[0]))
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, v.fd(w[1]), got)
		_ = unix.Close(got)
	}
	if i, err := tcprepair.Get(v.fd(109)); err != nil || i.Backlog != 0 || i.Waiting != 3 {
		t.Errorf("at most %d may wait, %d do (%v), want 0 and 3", i.Backlog, i.Waiting, err)
	}
	for n, want := range map[int]string{94: "127.0.0.2:8092", 95: "127.0.0.1:8092", 109: "127.0.0.1:8093"} {
		for range 3 {
			got, err := acceptFrom(v.fd(n))
			if err != nil {
				t.Fatal(err)
			}
			if a, err := addressFrom(got, unix.SYS_GETSOCKNAME); err != nil || inetAddress(a) != netip.MustParseAddrPort(want) {
				t.Errorf("descriptor %d accepts a connection to %v (%v), want %s", n, inetAddress(a), err, want)
			}
			_ = unix.Close(got)
		}
	}
	if got, err := acceptFrom(v.fd(73)); err != nil {
		t.Error(err)
	} else {
		expectEOF(t, got)
		_ = unix.Close(got)
	}
	for n, want := range map[int]error{67: unix.ECONNRESET, 68: nil, 69: nil} {
		if n != 69 {
			expectRead(t, v.fd(n), "bye")
		}
		if k, err := unix.Read(v.fd(n), make([]byte, 1)); err != want || want == nil && k != 0 {
			t.Errorf("read of %d gives %d, %v, want %v", n, k, err, want)
		}
	}
	if e, _ := unix.GetsockoptInt(v.fd(70), unix.SOL_SOCKET, unix.SO_ERROR); unix.Errno(e) != unix.ECONNREFUSED {
		t.Errorf("SO_ERROR of a refused connection: %v", unix.Errno(e))
	}
	if err := unix.Connect(v.fd(72), &unix.SockaddrInet4{Port: 8080, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Errorf("connect anew: %v", err)
	}
}

// exchange sends by one end and reads by the other, both ways.
func exchange(t *testing.T, a, b int) {
	t.Helper()
	for _, d := range [][2]int{{a, b}, {b, a}} {
		if _, err := unix.Write(d[0], []byte("hello")); err != nil {
			t.Errorf("write: %v", err)
			return
		}
		waitUnread(t, d[1], 5)
		expectRead(t, d[1], "hello")
	}
}

// checkFull reads all of a connection whose windows are full.
func checkFull(t *testing.T, v *restored, total int) {
	t.Helper()
	fd := v.fd(54)
	start := time.Now()
	got := make([]byte, 0, total)
	buf := make([]byte, 1<<16)
	for len(got) < total {
		if time.Since(start) > 5*time.Second {
			t.Errorf("only %d of %d bytes came", len(got), total)
			return
		}
		if !ready(fd, unix.POLLIN) {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
			continue
		}
		n, err := unix.Read(fd, buf)
		if err != nil || n == 0 {
			t.Errorf("read %d bytes (%v) after %d", n, err, len(got))
			return
		}
		got = append(got, buf[:n]...)
	}
	want := make([]byte, total)
	for i := range want {
		j := i % 65536
		want[i] = byte(j*31 + j/253)
	}
	if !bytes.Equal(got, want) {
		t.Error("the bytes of the full connection are not those that were written")
	}
	t.Logf("%d bytes in %v", total, time.Since(start))
	expectEOF(t, v.fd(53))
}
