package descriptor

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

const udpScript = `
import os, sys, socket, struct
S = socket
def put(s, n):
    fd = s if isinstance(s, int) else s.detach()
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def udp(addr=None, to=None, fam=S.AF_INET, port=False):
    s = S.socket(fam, S.SOCK_DGRAM)
    if port: s.setsockopt(S.SOL_SOCKET, S.SO_REUSEPORT, 1)
    if addr: s.bind(addr)
    if to: s.connect(to)
    return s
def so(n): return S.socket(fileno=os.dup(n))
put(udp(("0.0.0.0", 5353)), 50); put(udp(to=("127.0.0.1", 5353)), 51); put(udp(("127.0.0.1", 5354)), 52)
os.write(51, b"query"); so(52).sendto(b"other" + bytes(60000), ("127.0.0.1", 5353)); s = udp(); s.sendto(b"gone", ("127.0.0.1", 5353)); s.close()
put(udp(("127.0.0.1", 5355)), 53); so(52).sendto(b"before", ("127.0.0.1", 5355)); so(53).connect(("127.0.0.1", 9999))
put(udp(("::", 5356), fam=S.AF_INET6), 54); put(udp(to=("::1", 5356), fam=S.AF_INET6), 55); put(udp(("::1", 5358), ("::1", 5356), S.AF_INET6), 59); os.write(55, b"six"); so(51).sendto(b"four", ("127.0.0.1", 5356))
# of those that share a port the kernel chooses one
put(udp(("127.0.0.1", 5357), port=True), 56); put(udp(("127.0.0.1", 5357), port=True), 57)
for n in range(20): s = udp(); s.sendto(b"%02d" % n, ("127.0.0.1", 5357)); s.close()
put(udp(), 58); so(50).setsockopt(S.SOL_SOCKET, S.SO_BROADCAST, 1); so(51).setsockopt(S.IPPROTO_IP, S.IP_TTL, 7)
put(S.socket(S.AF_NETLINK, S.SOCK_RAW, 0), 60); so(60).bind((0, 5)); so(60).setsockopt(270, 1, 33)
put(S.socket(S.AF_NETLINK, S.SOCK_DGRAM, 4), 61)
print("ready", flush=True)
sys.stdin.read()
`

func TestUDPAndNetlink(t *testing.T) {
	b := newBody(t)
	p := b.python(t, udpScript)
	want := descriptions(t, p.Process.Pid)
	var r *Result
	for range 3 {
		r = p.mustCapture(t)
	}
	v := newBody(t).restore(t, r)
	sameTable(t, want, v)
	live := &restored{pidfd: p.pidfd, pid: p.Process.Pid, t: t}
	for _, n := range []int{50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61} {
		for _, call := range []uintptr{unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME} {
			was, e1 := addressFrom(live.fd(n), call)
			is, e2 := addressFrom(v.fd(n), call)
			if !bytes.Equal(was, is) || (e1 == nil) != (e2 == nil) {
				t.Errorf("descriptor %d has address %x (%v), was %x (%v)", n, is, e2, was, e1)
			}
		}
	}
	for n, want := range map[int]int{54: 0, 55: 0, 59: 1} {
		if only, err := unix.GetsockoptInt(v.fd(n), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err != nil || only != want {
			t.Errorf("IPV6_V6ONLY of %d is %d (%v)", n, only, err)
		}
	}
	for _, n := range []int{50, 53, 54, 56, 57} {
		for i := 0; ; i++ {
			was, from, e1 := received(live.fd(n))
			is, from2, e2 := received(v.fd(n))
			if !bytes.Equal(was, is) || !bytes.Equal(from, from2) || e1 != e2 {
				t.Errorf("datagram %d of %d: %d bytes %.10q from %x (%v), want %d bytes %.10q from %x (%v)", i, n, len(is), is, from2, e2, len(was), was, from, e1)
			}
			if e1 != nil {
				if n == 50 && i != 3 || n == 53 && i != 1 || n == 54 && i != 2 {
					t.Errorf("%d datagrams in %d", i, n)
				}
				break
			}
		}
	}
	for who, s := range map[string]*restored{"live": live, "restored": v} {
		if ttl, _ := unix.GetsockoptInt(s.fd(51), unix.IPPROTO_IP, unix.IP_TTL); ttl != 7 {
			t.Errorf("%s: TTL %d", who, ttl)
		}
		if _, err := unix.Write(s.fd(51), []byte("new")); err != nil {
			t.Errorf("%s: %v", who, err)
		}
		expectRead(t, s.fd(50), "new")
		var groups [64]byte
		n, err := getOption(s.fd(60), unix.SOL_NETLINK, unix.NETLINK_LIST_MEMBERSHIPS, groups[:])
		if err != nil || n < 8 || groups[0] != 5 || groups[4] != 1 {
			t.Errorf("%s: groups %x (%v)", who, groups[:n], err)
		}
	}
}

func received(fd int) (data, from []byte, err error) {
	e := envelope{from: make([]byte, 128), control: make([]byte, 256)}
	data = make([]byte, 1<<16)
	n, err := receiveMessage(fd, data, &e, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, nil, err
	}
	return data[:n], e.from, nil
}
