package descriptor

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// livePython has pipes with unread data, files and a terminal of its own, and
// at a word of its stdin checks that all is as it left it.
const livePython = `
import os, sys, select, termios, fcntl
os.chdir("/tmp")
f = open("log", "ab+"); f.write(b"begin\n"); f.flush()
g = os.open("gone", os.O_RDWR | os.O_CREAT); os.write(g, b"x" * 300000); os.lseek(g, 12345, 0); os.unlink("gone")
r, w = os.pipe(); os.write(w, b"y" * 50000)
r2, w2 = os.pipe(); os.close(w2)
m, s = os.openpty(); os.write(m, b"typed\npart")
while fcntl.ioctl(m, termios.FIONREAD, b"1234")[0] < 11: pass   # the echo comes by a worker
os.write(s, b"shown\n")
e = select.epoll(); e.register(r, select.EPOLLIN)
d = os.open("/usr/lib", os.O_RDONLY); os.lseek(d, 7, 0)
def state(): return [(fd, fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETFD)) for fd in (0, 1, 2, f.fileno(), g, r, w, r2, m, s, e.fileno(), d)], \
    f.tell(), os.lseek(g, 0, 1), os.lseek(d, 0, 1), termios.tcgetattr(s)
before = state()
print("ready", flush=True)
n = 0
for line in sys.stdin:
    n += 1
    assert state() == before, state()
    assert e.poll(0) == [(r, select.EPOLLIN)]
    if line == "read\n":
        assert os.read(r, 1 << 17) == b"y" * 50000
        os.set_blocking(r, False)
        try: os.read(r, 1); assert False, "more in the pipe"
        except BlockingIOError: pass
        assert os.read(r2, 1) == b""
        assert os.read(m, 4096) == b"typed\r\npartshown\r\n"
        os.write(m, b"ial\n")
        assert os.read(s, 4096) == b"typed\n" and os.read(s, 4096) == b"partial\n"
        assert os.pread(g, 400000, 0) == b"x" * 300000
        os.close(w); assert os.read(r, 1) == b""  # nobody else has the write end
        print("good", n, flush=True)
        break
    print("same", n, flush=True)
`

func TestTwoHundredCapturesLeaveEverythingAsItWas(t *testing.T) {
	b := newBody(t)
	p := b.python(t, livePython)
	before := descriptions(t, p.Process.Pid)
	var c Capturer
	var last *Result
	for i := range 200 {
		var err error
		stopped(t, []int{p.Process.Pid}, func() {
			last, err = c.Capture([]Process{p.process()}, p.env())
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range last.Files {
			if f.Blob != nil {
				_ = f.Blob.Close()
			}
		}
		if i%40 == 0 {
			if _, err := p.stdin.WriteString("check\n"); err != nil {
				t.Fatal(err)
			}
			expectLine(t, p.stdout, fmt.Sprint("same ", i/40+1))
		}
	}
	for n, w := range descriptions(t, p.Process.Pid) {
		if before[n] != w {
			t.Errorf("descriptor %d is %q, was %q", n, w, before[n])
		}
	}
	if _, err := p.stdin.WriteString("read\n"); err != nil {
		t.Fatal(err)
	}
	line, _ := p.stdout.ReadString('\n')
	if line != "good 6\n" {
		text := make([]byte, 4096)
		n, _ := p.out[1].Read(text)
		t.Fatalf("%q %s", line, text[:n])
	}
	// No duplicate of ours keeps the session's pipes open.
	_ = p.stdin.Close()
	if _, err := p.stdout.ReadByte(); err == nil {
		t.Error("stdout has more")
	}
}

// On overlay, an unlinked file of a lower layer keeps its link count.
func TestDeletedOnOverlay(t *testing.T) {
	b := newBody(t)
	p := b.python(t, `
import os, sys, subprocess
os.chdir("/tmp")
for d in ("l", "u", "w", "o"): os.mkdir(d)
for n in ("low", "old", "kept"): open("l/" + n, "w").write("content of " + n)
subprocess.check_call(["mount", "-t", "overlay", "overlay", "-o", "lowerdir=l,upperdir=u,workdir=w,xino=on", "o"])
def put(fd, n): os.dup2(fd, n); os.close(fd)
put(os.open("o/low", os.O_RDONLY), 50); os.unlink("o/low")
assert os.fstat(50).st_nlink == 1
put(os.open("o/old", os.O_RDONLY), 51); open("o/tmp", "w").write("new"); os.rename("o/tmp", "o/old")
put(os.open("o/kept", os.O_RDONLY), 52); open("o/kept", "a").write(", longer")
put(os.open("o/up", os.O_RDWR | os.O_CREAT), 53); os.write(53, b"upper"); os.unlink("o/up")
put(os.open("o", os.O_RDONLY), 54)
print("ready", flush=True)
sys.stdin.read()`)
	r := p.mustCapture(t)
	for n, want := range map[int]string{50: "/tmp/o/low deleted", 51: "/tmp/o/old deleted", 52: "/tmp/o/kept", 53: "/tmp/o/up deleted", 54: "/tmp/o"} {
		f := fileAt(r, 0, n)
		got := f.Path
		if f.Deleted {
			got += " deleted"
		}
		if got != want {
			t.Errorf("descriptor %d: %s, want %s", n, got, want)
		}
	}
	v := b.restore(t, r)
	content(t, v, 50, "content of low", 0)
	content(t, v, 51, "content of old", 0)
	content(t, v, 52, "content of kept, longer", 0)
	content(t, v, 53, "upper", 0)
	left, err := os.ReadDir(b.path("/tmp/o"))
	if err != nil || len(left) != 2 {
		t.Errorf("directory has %v (%v)", left, err)
	}
}

// More descriptors than one message carries, at numbers that meet those of
// the control socket and of what is received.
func TestManyDescriptors(t *testing.T) {
	b := newBody(t)
	p := b.python(t, `
import os, sys, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 4096))
os.chdir("/tmp")
for n in list(range(3, 500)) + [900, 1023]:
    if n % 3 == 2: os.dup2(n - 1, n)
    else:
        fd = os.open("f%d" % (n % 7), os.O_RDWR | os.O_CREAT); os.lseek(fd, n, 0)
        if fd != n: os.dup2(fd, n); os.close(fd)
print("ready", flush=True)
sys.stdin.read()`)
	want := descriptions(t, p.Process.Pid)
	r := p.mustCapture(t)
	limit := unix.Rlimit{Cur: 4096, Max: 4096}
	b.before = func(pid int) {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
			t.Fatal(err)
		}
	}
	v := b.restore(t, r)
	sameTable(t, want, v)
	if same, err := sameDescription(v.fd(199), v.fd(200)); err != nil || !same {
		t.Errorf("199 and 200 share no description (%v)", err)
	}
}

// A terminal that ^S has stopped keeps its unread output, and stays stopped.
func TestStoppedTerminal(t *testing.T) {
	b := newBody(t)
	p := b.python(t, `
import os, sys
m, s = os.openpty(); os.dup2(m, 50); os.dup2(s, 51); os.close(m); os.close(s)
os.write(51, b"before\n"); os.write(50, b"\x13")
print("ready", flush=True)
sys.stdin.read()`)
	live := &restored{pidfd: p.pidfd, t: t}
	for range 3 {
		r := p.mustCapture(t)
		if len(r.Terminals) != 1 || string(r.Terminals[0].Output) != "before\r\n" || !r.Terminals[0].Stopped {
			t.Fatalf("%+v", r.Terminals[0])
		}
		if ready(live.fd(51), unix.POLLOUT) {
			t.Error("the terminal goes on")
		}
	}
	r := p.mustCapture(t)
	if _, err := unix.Write(live.fd(50), []byte{0x11}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Second); !ready(live.fd(51), unix.POLLOUT); {
		if time.Now().After(deadline) {
			t.Fatal("^Q does not start it again")
		}
	}
	expectRead(t, live.fd(50), "before\r\n")
	for _, fd := range live.dups {
		_ = unix.Close(fd)
	}
	live.dups = nil
	p.end()
	waitFree(t, b.path("/dev/pts/0"))
	v := b.restore(t, r)
	if ready(v.fd(51), unix.POLLOUT) {
		t.Error("the restored terminal goes on")
	}
	expectRead(t, v.fd(50), "before\r\n")
}

// One that TCOOFF holds stays held, until TCOON, with its unread output and without.
func TestHeldTerminal(t *testing.T) {
	for _, text := range []string{"", "before\n", strings.Repeat("much\n", 2000)} {
		b := newBody(t)
		p := b.python(t, fmt.Sprintf(`
import os, sys, termios
m, s = os.openpty(); os.dup2(m, 50); os.dup2(s, 51); os.close(m); os.close(s)
a = termios.tcgetattr(51); a[1] = 0; termios.tcsetattr(51, termios.TCSANOW, a) # as it is
os.write(51, %q.encode()); termios.tcflow(51, termios.TCOOFF)
print("ready", flush=True)
sys.stdin.read()`, text))
		live := &restored{pidfd: p.pidfd, t: t}
		var r *Result
		for range 3 {
			r = p.mustCapture(t)
			if len(r.Terminals) != 1 || string(r.Terminals[0].Output) != text || r.Terminals[0].Stopped || !r.Terminals[0].Held {
				t.Fatalf("%+v", r.Terminals[0])
			}
		}
		goesOn := func(who string, v *restored) {
			t.Helper()
			if ready(v.fd(51), unix.POLLOUT) {
				t.Errorf("%s: it goes on", who)
			}
			var got []byte
			for buf := make([]byte, 4096); len(got) < len(text) && becomes(v.fd(50), unix.POLLIN); {
				n, err := unix.Read(v.fd(50), buf)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, buf[:n]...)
			}
			if string(got) != text {
				t.Errorf("%s: %d bytes are read, want %d", who, len(got), len(text))
			}
			if err := unix.IoctlSetInt(v.fd(51), unix.TCXONC, 1); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(v.fd(51), []byte("more")); err != nil {
				t.Fatal(err)
			}
			expectRead(t, v.fd(50), "more")
		}
		goesOn("live", live)
		for _, fd := range live.dups {
			_ = unix.Close(fd)
		}
		live.dups = nil
		p.end()
		waitFree(t, b.path("/dev/pts/0"))
		goesOn("restored", b.restore(t, r))
	}
}

func TestField(t *testing.T) {
	text := []byte("pos:\t12\nflags:\t0100002\nposx:\t3\nlock:\t1: FLOCK  ADVISORY  WRITE 5 00:1:2 0 EOF\n")
	for name, want := range map[string]string{"pos": "12", "flags": "0100002", "lock": "1: FLOCK  ADVISORY  WRITE 5 00:1:2 0 EOF"} {
		if got, ok := field(text, name); !ok || got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if _, ok := field(text, "po"); ok {
		t.Error("half a name was found")
	}
}
