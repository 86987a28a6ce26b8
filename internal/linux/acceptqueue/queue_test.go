package acceptqueue

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

var shared = sync.OnceValues(Open)

func open(t testing.TB) *Reader {
	t.Helper()
	roottest.Need(t, "BPF")
	r, err := shared()
	if fault.Is(err, fault.Unsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func socket(t testing.TB, domain, typ int) int {
	t.Helper()
	fd, err := unix.Socket(domain, typ|unix.SOCK_CLOEXEC, 0)
	try(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// write writes until all is written or the socket takes no more.
func write(t testing.TB, fd int, data []byte) (n int) {
	t.Helper()
	for n < len(data) {
		k, err := unix.SendmsgN(fd, data[n:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EAGAIN {
			return n
		}
		try(t, err)
		n += k
	}
	return n
}

// arrive waits until the other end has received all: on a busy machine it takes a
// moment.
func arrive(t testing.TB, fd int) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		try(t, err)
		if n == 0 {
			return
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d bytes do not arrive", n)
		}
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// What connections have received that nobody accepted is read byte for byte, in
// their order, and is still there.
func TestTCP(t *testing.T) {
	r := open(t)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		t.Run(fmt.Sprint(family), func(t *testing.T) {
			l := socket(t, family, unix.SOCK_STREAM)
			var any unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
			if family == unix.AF_INET6 {
				any = &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
			}
			try(t, unix.Bind(l, any))
			try(t, unix.Listen(l, 100))
			at, err := unix.Getsockname(l)
			try(t, err)
			none, err := r.TCP(l, 1<<20)
			if err != nil || len(none) != 0 {
				t.Fatalf("an empty queue has %d (%v)", len(none), err)
			}
			var want [][]byte
			var ports []uint16
			for _, n := range []int{0, 1, 100, 5000, 30000, 1 << 20, 17} {
				c := socket(t, family, unix.SOCK_STREAM)
				try(t, unix.Connect(c, at))
				data := random(n)
				if n < 1<<20 {
					try(t, unix.SetsockoptInt(c, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20))
				}
				// In odd parts, so that segments are joined and not.
				for from := 0; from < n; {
					k := min(n-from, 1+rand.IntN(20000))
					if write(t, c, data[from:from+k]) < k {
						break
					}
					from += k
				}
				if n == 17 {
					try(t, unix.Shutdown(c, unix.SHUT_WR))
				}
				want = append(want, data)
				if n < 1<<20 {
					arrive(t, c)
				}
				own, err := unix.Getsockname(c)
				try(t, err)
				ports = append(ports, uint16(port(own)))
			}
			got, err := r.TCP(l, 1<<22)
			try(t, err)
			if len(got) != len(want) {
				t.Fatalf("%d connections, want %d", len(got), len(want))
			}
			for i, c := range got {
				if c.Remote.Port() != ports[i] || c.Local.Port() != uint16(port(at)) || !c.Local.Addr().IsLoopback() || !c.Remote.Addr().IsLoopback() {
					t.Errorf("connection %d is %v from %v, want port %d", i, c.Local, c.Remote, ports[i])
				}
				full := len(want[i]) == 1<<20 // more than a window
				if full && (len(c.Unread) == 0 || !bytes.HasPrefix(want[i], c.Unread)) || !full && !bytes.Equal(c.Unread, want[i]) {
					t.Errorf("connection %d has %d bytes, want %d, or others", i, len(c.Unread), len(want[i]))
				}
				fd, _, err := unix.Accept(l)
				try(t, err)
				rest := make([]byte, len(c.Unread))
				n, _, err := unix.Recvfrom(fd, rest, unix.MSG_DONTWAIT)
				if len(rest) > 0 && (err != nil || n != len(rest) || !bytes.Equal(rest, c.Unread)) {
					t.Errorf("the accepted one gives %d bytes (%v)", n, err)
				}
				_ = unix.Close(fd)
			}
			if state := got[len(got)-1].State; state != 8 {
				t.Errorf("the one that was closed one way is in state %d", state)
			}
		})
	}
}

func port(a unix.Sockaddr) int {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// One socket of both families has connections of IPv4, too.
func TestMappedAddress(t *testing.T) {
	r := open(t)
	l := socket(t, unix.AF_INET6, unix.SOCK_STREAM)
	try(t, unix.Bind(l, &unix.SockaddrInet6{}))
	try(t, unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	try(t, err)
	c := socket(t, unix.AF_INET, unix.SOCK_STREAM)
	try(t, unix.Connect(c, &unix.SockaddrInet4{Port: port(at), Addr: [4]byte{127, 0, 0, 1}}))
	write(t, c, []byte("four"))
	arrive(t, c)
	got, err := r.TCP(l, 100)
	try(t, err)
	want := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port(at)))
	if len(got) != 1 || got[0].Local != want || string(got[0].Unread) != "four" {
		t.Errorf("%+v, want %v", got, want)
	}
	if _, err := r.TCP(l, 3); err != ErrTooMuch {
		t.Errorf("a limit of 3 bytes: %v", err)
	}
}

// What is sent from a file stands in the file's pages.
func TestSplicedFile(t *testing.T) {
	r := open(t)
	data := random(100000)
	path := filepath.Join(t.TempDir(), "f")
	try(t, os.WriteFile(path, data, 0o600))
	f, err := os.Open(path)
	try(t, err)
	defer f.Close()
	l := socket(t, unix.AF_INET, unix.SOCK_STREAM)
	try(t, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	try(t, unix.Listen(l, 1))
	at, err := unix.Getsockname(l)
	try(t, err)
	c := socket(t, unix.AF_INET, unix.SOCK_STREAM)
	try(t, unix.Connect(c, at))
	n, err := unix.Sendfile(c, int(f.Fd()), nil, 30000)
	try(t, err)
	arrive(t, c)
	got, err := r.TCP(l, 1<<20)
	try(t, err)
	if len(got) != 1 || !bytes.Equal(got[0].Unread, data[:n]) {
		t.Errorf("%d connections, or not the file's %d bytes", len(got), n)
	}
}

func TestUnix(t *testing.T) {
	r := open(t)
	for _, typ := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		l := socket(t, unix.AF_UNIX, typ)
		name := &unix.SockaddrUnix{Name: fmt.Sprintf("@acceptqueue-%d-%d", os.Getpid(), typ)}
		try(t, unix.Bind(l, name))
		try(t, unix.Listen(l, 10))
		var want [][]byte
		for i := range 4 {
			c, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
			try(t, err)
			if i == 2 {
				try(t, unix.Bind(c, &unix.SockaddrUnix{Name: "@client" + name.Name[1:]}))
			}
			try(t, unix.Connect(c, name))
			data := random(i * 30000)
			write(t, c, data)
			if i == 3 {
				_, err := unix.SendmsgN(c, []byte("with a file"), unix.UnixRights(0, 2), nil, 0)
				try(t, err)
			}
			want = append(want, data)
			_ = unix.Close(c)
		}
		got, err := r.Unix(l, 1<<20)
		try(t, err)
		if len(got) != len(want) {
			t.Fatalf("%d connections", len(got))
		}
		copies := []int{socket(t, unix.AF_UNIX, typ), -1}
		copies[1], err = unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 100)
		try(t, err)
		try(t, unix.Dup3(0, copies[0], unix.O_CLOEXEC))
		files, err := r.Files(copies)
		try(t, err)
		_ = unix.Close(copies[1])
		for i, c := range got {
			var all []byte
			for k, m := range c.Unread {
				var want []File
				if i == 3 && k == len(c.Unread)-1 {
					want = files
				}
				if !slices.Equal(m.Files, want) {
					t.Errorf("message %d of connection %d carries %v, not %v", k, i, m.Files, want)
				}
				if m.Sender == nil || m.Sender.PID != os.Getpid() || m.Sender.UID != uint32(os.Getuid()) {
					t.Errorf("message %d of connection %d is from %+v", k, i, m.Sender)
				}
				all = append(all, m.Data...)
			}
			all = []byte(strings.TrimSuffix(string(all), "with a file"))
			if !bytes.Equal(all, want[i]) {
				t.Errorf("connection %d has %d bytes, want %d", i, len(all), len(want[i]))
			}
			if named := i == 2; named != (string(c.Address) == "\x01\x00\x00client"+name.Name[1:]) || !named && len(c.Address) > 0 {
				t.Errorf("connection %d comes from %q", i, c.Address)
			}
			if c.Client != (Sender{PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}) {
				t.Errorf("connection %d is of %+v", i, c.Client)
			}
		}
	}
}

// A bad address is an error.
func TestBadAddress(t *testing.T) {
	r := open(t)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range []uint64{1, 1 << 62, 0xffff_8000_0000_0000, ^uint64(0) - 100} {
		if b, err := r.read(a, 64); err == nil {
			t.Errorf("%#x has % x", a, b)
		}
	}
}

func BenchmarkTCP(b *testing.B) {
	r := open(b)
	l := socket(b, unix.AF_INET, unix.SOCK_STREAM)
	try(b, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	try(b, unix.Listen(l, 100))
	at, err := unix.Getsockname(l)
	try(b, err)
	for range 10 {
		c := socket(b, unix.AF_INET, unix.SOCK_STREAM)
		try(b, unix.Connect(c, at))
		write(b, c, random(500))
	}
	begin := time.Now()
	for b.Loop() {
		_, err := r.TCP(l, 1<<20)
		try(b, err)
	}
	b.ReportMetric(float64(time.Since(begin).Nanoseconds())/float64(b.N)/10, "ns/connection")
}
