package descriptor

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const pipesScript = `
import os, sys, fcntl
os.chdir("/tmp")
def put(fd, n):
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def pair(flags, r, w):
    a, b = os.pipe2(flags)
    if r: put(a, r)
    else: os.close(a)
    if w: put(b, w)
    return b
big = bytes((i * 7 + i // 251) & 255 for i in range(70000))
pair(os.O_NONBLOCK, 50, 51); fcntl.fcntl(51, 1031, 1 << 17)  # F_SETPIPE_SZ
os.write(51, b"first"); os.write(51, big); os.read(50, 2)
pair(os.O_DIRECT, 52, 53)
for m in (b"one", b"packet two", b"3"): os.write(53, m)
pair(0, 54, 55); os.write(55, b"no reader kept"); os.close(54)
r, w = os.pipe(); os.write(w, b"no writer left"); os.close(w); put(r, 56)
r, w = os.pipe2(os.O_DIRECT); os.write(w, b"one packet"); os.close(w); put(r, 57)
pair(0, 58, 59)                                   # empty
put(os.open("/proc/self/fd/59", os.O_WRONLY | os.O_APPEND), 60)   # another description of it
os.mkfifo("fifo", 0o620)
put(os.open("fifo", os.O_RDWR), 61); os.write(61, b"in a fifo")
put(os.open("fifo", os.O_RDONLY | os.O_NONBLOCK), 62)
os.mkfifo("gonefifo"); put(os.open("gonefifo", os.O_RDWR), 63); os.unlink("gonefifo"); os.write(63, b"lost name")
pair(os.O_NONBLOCK, 64, 65); [os.write(65, b"%04d" % i * 750) for i in range(16)]; os.read(64, 2999) # each page has 3000 bytes, the first one
pair(os.O_NONBLOCK, 66, 67); [os.write(67, b"%04d" % i * 750) for i in range(5)]
fcntl.fcntl(58, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(58, 10, 40)  # F_SETSIG
print("ready", flush=True)
os.write(2, b"unread error")
sys.stdin.read()
`

var big = func() []byte {
	b := make([]byte, 70000)
	for i := range b {
		b[i] = byte(i*7 + i/251)
	}
	return b
}()

func readAll(t *testing.T, fd int) []byte {
	t.Helper()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	var out []byte
	b := make([]byte, 1<<17)
	for {
		n, err := unix.Read(fd, b)
		if n <= 0 || err != nil {
			return out
		}
		out = append(out, b[:n]...)
	}
}

func TestPipes(t *testing.T) {
	b := newBody(t)
	p := b.python(t, pipesScript)
	waitUnread(t, int(p.out[1].Fd()), len("unread error"))
	want := descriptions(t, p.Process.Pid)
	var r *Result
	var err error
	stopped(t, []int{p.Process.Pid}, func() {
		if _, err := p.stdin.Write([]byte("unread input")); err != nil {
			t.Error(err)
		}
		var c Capturer
		r, err = c.Capture([]Process{p.process()}, p.env())
	})
	if err != nil {
		t.Fatal(err)
	}
	closeBlobs(t, r)
	other := newBody(t) // a FIFO of the same body would be the live one
	if err := unix.Mkfifo(other.path("/tmp/fifo"), 0o620); err != nil {
		t.Fatal(err)
	}
	v := other.restore(t, r)
	want[63] = strings.Replace(want[63], "gonefifo", ".restored-0", 1)
	sameTable(t, want, v)

	if got := readAll(t, v.fd(50)); !bytes.Equal(got, append([]byte("rst"), big...)) {
		t.Errorf("pipe has %d bytes", len(got))
	}
	if n, _ := unix.FcntlInt(uintptr(v.fd(51)), unix.F_GETPIPE_SZ, 0); n != 1<<17 {
		t.Errorf("size of the pipe is %d", n)
	}
	for _, m := range []string{"one", "packet two", "3"} {
		expectRead(t, v.fd(52), m)
	}
	if got := readAll(t, v.fd(56)); string(got) != "no writer left" {
		t.Errorf("pipe without a writer has %q", got)
	}
	expectEOF(t, v.fd(56))
	one := make([]byte, 3)
	if n, _ := unix.Read(v.fd(57), one); n != 3 {
		t.Errorf("read %d bytes of a packet", n)
	}
	expectEOF(t, v.fd(57)) // the rest of a packet is lost
	if _, err := unix.Write(v.fd(60), []byte("x")); err != nil {
		t.Error(err)
	}
	expectRead(t, v.fd(58), "x")
	expectRead(t, v.fd(62), "in a fifo")
	expectRead(t, v.fd(63), "lost name")
	if o, err := getOwner(v.fd(58)); err != nil || int(o.pid) != p.Process.Pid {
		t.Errorf("owner %+v (%v)", o, err)
	}
	// What there is room for depends on how full the pages are.
	for fd, want := range map[int]int{65: 1096, 67: 11*4096 + 1096} {
		room := 0
		for b := make([]byte, 8); ; room += len(b) {
			if _, err := unix.Write(v.fd(fd), b); err != nil {
				break
			}
		}
		if room != want {
			t.Errorf("pipe %d has room for %d more bytes, not %d", fd, room, want)
		}
	}
	if got := readAll(t, v.fd(64)); len(got) < 45001 || string(got[:5]) != "00001" || string(got[44997:45001]) != "0015" {
		t.Errorf("a pipe of 16 parts has %d bytes: %q", len(got), got[:min(len(got), 10)])
	}
	// A pipe whose readers are gone is broken again.
	if fi := fileAt(r, 0, 55); string(fi.Content) != "no reader kept" {
		t.Errorf("captured %q", fi.Content)
	}
	poll := []unix.PollFd{{Fd: int32(v.fd(55))}}
	if _, err := unix.Poll(poll, 0); err != nil || poll[0].Revents&unix.POLLERR == 0 {
		t.Errorf("pipe without a reader: events %#x", poll[0].Revents)
	}

	expectRead(t, v.fd(0), "unread input")
	expectRead(t, int(v.session[2].Fd()), "unread error")
	// The end of file is not hidden by anything we hold.
	if err := v.session[0].Close(); err != nil {
		t.Fatal(err)
	}
	expectEOF(t, v.fd(0))
	v.end()
	if rest, err := io.ReadAll(v.session[1]); err != nil || len(rest) != 0 {
		t.Errorf("stdout: %q %v", rest, err)
	}

	// The live one has all it had.
	for n, w := range descriptions(t, p.Process.Pid) {
		if n != 63 && want[n] != w {
			t.Errorf("live descriptor %d is %q, was %q", n, w, want[n])
		}
	}
	live := &restored{pidfd: p.pidfd, t: t}
	if got := readAll(t, live.fd(50)); !bytes.Equal(got, append([]byte("rst"), big...)) {
		t.Errorf("live pipe has %d bytes", len(got))
	}
	for _, m := range []string{"one", "packet two", "3"} {
		expectRead(t, live.fd(52), m)
	}
	expectRead(t, int(p.out[1].Fd()), "unread error")
}

func expectRead(t *testing.T, fd int, want string) {
	t.Helper()
	b := make([]byte, 4096)
	if !becomes(fd, unix.POLLIN) {
		t.Errorf("nothing to read, want %q", want)
		return
	}
	if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != want {
		t.Errorf("read %q (%v), want %q", b[:n], err, want)
	}
}

func expectEOF(t *testing.T, fd int) {
	t.Helper()
	var b [16]byte
	if !becomes(fd, unix.POLLIN|unix.POLLHUP) {
		t.Error("no end of file")
		return
	}
	if n, err := unix.Read(fd, b[:]); n != 0 || err != nil {
		t.Errorf("read %d bytes (%v), want an end of file", n, err)
	}
}

// becomes waits until a descriptor is ready: what goes over loopback is put off
// on a busy machine.
func becomes(fd int, events int16) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	n, err := unix.Poll(p, 2000)
	return err == nil && n > 0
}

func waitUnread(t *testing.T, fd, n int) {
	t.Helper()
	for range 2000 {
		if k, _ := unix.IoctlGetInt(fd, unix.TIOCINQ); k >= n {
			return
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, 1)
	}
	t.Fatalf("never %d bytes unread", n)
}
