package descriptor

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

const pairsScript = `
import os, sys, socket, struct, array
S = socket
def put(s, n):
    fd = s if isinstance(s, int) else s.detach()
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def pair(typ, a, b):
    x, y = S.socketpair(S.AF_UNIX, typ)
    put(x, a)
    if b: put(y, b)
    return y
def so(n, typ=S.SOCK_STREAM): return S.socket(S.AF_UNIX, typ, fileno=os.dup(n))
big = bytes((i * 7 + i // 251) & 255 for i in range(70000))
pair(S.SOCK_STREAM, 50, 51); os.write(50, b"there"); os.write(50, big); os.write(51, b"back"); os.read(51, 2)
os.set_blocking(50, False)
pair(S.SOCK_DGRAM, 52, 53)
for m in (b"one", b"", b"three"): os.write(52, m)
pair(S.SOCK_SEQPACKET, 54, 55); os.write(55, b"s1"); os.write(55, b"s22"); so(55).shutdown(S.SHUT_WR)
y = pair(S.SOCK_STREAM, 56, None); y.send(b"last words"); y.close()
y = pair(S.SOCK_STREAM, 57, None); os.write(57, b"unread"); y.close()   # ECONNRESET waits
pair(S.SOCK_STREAM, 58, 59); so(58).setsockopt(S.SOL_SOCKET, S.SO_RCVBUF, 9000); so(58).setsockopt(S.SOL_SOCKET, S.SO_SNDTIMEO, struct.pack("ll", 3, 500))
so(59).setsockopt(S.SOL_SOCKET, S.SO_PASSCRED, 1); os.write(58, b"signed")
so(58).shutdown(S.SHUT_RD)
# descriptors on their way, and a socket with one among them
pair(S.SOCK_STREAM, 60, 61); r, w = os.pipe(); os.write(w, b"in the pipe")
os.write(60, b"before;"); S.send_fds(so(60), [b"with;"], [r, w]); os.write(60, b"after")
a, b = S.socketpair(); S.send_fds(a, [b"inner"], [r]); S.send_fds(so(60), [b"nested"], [b.fileno()]); a.send(b"!"); a.close(); b.close()
os.close(r); os.close(w)
put(S.socket(S.AF_UNIX, S.SOCK_STREAM), 62)
y = pair(S.SOCK_DGRAM, 63, None); y.setsockopt(S.SOL_SOCKET, S.SO_PASSCRED, 1); y.send(b"from a name"); y.send(b"more"); y.close() # the kernel has named it
print("ready", flush=True)
sys.stdin.read()
`

func TestSocketPairs(t *testing.T) {
	b := newBody(t)
	p := b.python(t, pairsScript)
	b.pids = []int{p.Process.Pid}
	want := descriptions(t, p.Process.Pid)
	var r *Result
	for range 3 { // a capture leaves all as it is
		r = p.mustCapture(t)
	}
	v := b.restore(t, r)
	sameTable(t, want, v)
	for _, who := range []struct {
		name string
		*restored
	}{{"live", &restored{pidfd: p.pidfd, pid: p.Process.Pid, t: t}}, {"restored", v}} {
		t.Run(who.name, func(t *testing.T) { checkPairs(t, who.restored) })
	}
}

func checkPairs(t *testing.T, v *restored) {
	if got := readAll(t, v.fd(51)); !bytes.Equal(got, append([]byte("ere"), big...)) {
		t.Errorf("stream has %d bytes", len(got))
	}
	expectRead(t, v.fd(50), "back")
	for _, m := range []string{"one", "", "three"} {
		if m == "" && v.session[0] != nil {
			continue // was looked at before, and is not found again
		}
		expectRead(t, v.fd(53), m)
	}
	expectRead(t, v.fd(54), "s1")
	expectRead(t, v.fd(54), "s22")
	expectEOF(t, v.fd(54))
	expectRead(t, v.fd(56), "last words")
	expectEOF(t, v.fd(56))
	if _, err := unix.Write(v.fd(56), []byte("x")); err != unix.EPIPE {
		t.Errorf("write to a closed pair: %v", err)
	}
	if _, err := unix.Read(v.fd(57), make([]byte, 1)); err != unix.ECONNRESET {
		t.Errorf("read of a reset pair: %v", err)
	}
	name, err := addressFrom(v.fd(63), unix.SYS_GETPEERNAME)
	if err != nil || len(name) < 3 {
		t.Errorf("the other end of a pair that was closed has the name %q (%v)", name, err)
	}
	data, from, err := received(v.fd(63))
	if err != nil || string(data) != "from a name" || !bytes.Equal(from, name) {
		t.Errorf("received %q from %q (%v), want it from %q", data, from, err, name)
	}
	expectRead(t, v.fd(63), "more")
	if n, _ := unix.GetsockoptInt(v.fd(58), unix.SOL_SOCKET, unix.SO_RCVBUF); n != 18000 {
		t.Errorf("SO_RCVBUF is %d", n)
	}
	if tv, _ := unix.GetsockoptTimeval(v.fd(58), unix.SOL_SOCKET, unix.SO_SNDTIMEO); tv == nil || tv.Sec != 3 {
		t.Errorf("SO_SNDTIMEO is %v", tv)
	}
	expectSender(t, v.fd(59), "signed", v.pid)
	if _, err := unix.Write(v.fd(59), []byte("x")); err != unix.EPIPE {
		t.Errorf("write to an end that receives no more: %v", err)
	}
	expectRights(t, v.fd(61), "before;", 0)
	fds := expectRights(t, v.fd(61), "with;", 2)
	if fds != nil {
		expectRead(t, fds[0], "in the pipe")
		closeAll(fds)
	}
	expectRights(t, v.fd(61), "after", 0)
	if fds = expectRights(t, v.fd(61), "nested", 1); fds != nil {
		inner := expectRights(t, fds[0], "inner", 1)
		expectRead(t, fds[0], "!")
		expectEOF(t, fds[0])
		closeAll(append(fds, inner...))
	}
	if u, err := unix.GetsockoptUcred(v.fd(50), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil || int(u.Pid) != v.pid {
		t.Errorf("SO_PEERCRED %v (%v), want pid %d", u, err, v.pid)
	}
}

// expectRights reads one message with descriptors.
func expectRights(t *testing.T, fd int, want string, n int) (fds []int) {
	t.Helper()
	data, control := make([]byte, len(want)), make([]byte, 256)
	k, c, _, _, err := unix.Recvmsg(fd, data, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil || string(data[:k]) != want {
		t.Errorf("received %q (%v), want %q", data[:max(k, 0)], err, want)
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(control[:c])
	if err != nil {
		t.Fatal(err)
	}
	for i := range msgs {
		if some, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, some...)
		}
	}
	if len(fds) != n {
		t.Errorf("%q came with %d descriptors, want %d", want, len(fds), n)
		closeAll(fds)
		return nil
	}
	return fds
}

func expectSender(t *testing.T, fd int, want string, pid int) {
	t.Helper()
	data, control := make([]byte, 64), make([]byte, 256)
	k, c, _, _, err := unix.Recvmsg(fd, data, control, unix.MSG_DONTWAIT)
	if err != nil || string(data[:k]) != want {
		t.Fatalf("received %q (%v), want %q", data[:max(k, 0)], err, want)
	}
	msgs, err := unix.ParseSocketControlMessage(control[:c])
	if err != nil || len(msgs) != 1 {
		t.Fatalf("%d control messages (%v)", len(msgs), err)
	}
	u, err := unix.ParseUnixCredentials(&msgs[0])
	if err != nil || int(u.Pid) != pid || u.Uid != 0 {
		t.Errorf("sent by %+v (%v), want pid %d", u, err, pid)
	}
}
