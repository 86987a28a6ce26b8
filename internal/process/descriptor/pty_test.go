package descriptor

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

const ptyScript = `
import os, sys, fcntl, termios, struct, tty, signal
def put(fd, n):
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def pair(m, s):
    a, b = os.openpty(); put(a, m); put(b, s)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.setsid()
pair(50, 51)                                      # 0
fcntl.ioctl(51, termios.TIOCSCTTY, 0)
fcntl.ioctl(50, termios.TIOCSWINSZ, struct.pack("4H", 31, 99, 0, 0))
os.write(50, b"line one\nline two\n\x04part")
while fcntl.ioctl(50, termios.FIONREAD, b"1234")[0] < 24: pass   # the echo comes by a worker
os.write(51, b"output\n")
pair(52, 53)                                      # 1: raw, packet mode
tty.setraw(53); fcntl.ioctl(52, termios.TIOCPKT, struct.pack("i", 1))
os.write(52, b"raw\x03\x00input"); os.write(53, b"packet output\n")
pair(54, 55); os.close(54)                        # 2: hung up
pair(56, 57); os.close(57)                        # 3: slave closed
put(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY), 58)   # 4: slave never opened
put(os.open("/dev/tty", os.O_RDWR), 59)
put(os.open("/dev/pts/0", os.O_RDONLY | os.O_NOCTTY), 60)
k = os.fork()
if k == 0:
    os.setpgid(0, 0)
    while True: signal.pause()
try: os.setpgid(k, k)
except OSError: pass
os.tcsetpgrp(51, k)
print("ready", k, flush=True)
sys.stdin.read()
`

func TestTerminals(t *testing.T) {
	b := newBody(t)
	p, kid, kidFD := b.pythonWithChild(t, ptyScript)
	want, wantKid := descriptions(t, p.Process.Pid), descriptions(t, kid)
	leader := p.process()
	leader.Terminal = 0
	procs := []Process{leader, {HostPID: kid, PID: kid, PIDFD: kidFD, Comm: "kid", Group: kid, Terminal: 0}}
	var r *Result
	var err error
	for range 3 { // what was put back is captured again
		var c Capturer
		stopped(t, []int{p.Process.Pid, kid}, func() { r, err = c.Capture(procs, p.env()) })
		if err != nil {
			t.Fatal(err)
		}
		closeBlobs(t, r)
		checkTerminals(t, r, kid, p.Process.Pid)
	}
	if fileAt(r, 0, 59) != fileAt(r, 1, 59) && fileAt(r, 1, 59) != nil {
		t.Error("parent and child share no description")
	}

	p.end() // its terminals' numbers are free when both are gone
	_ = unix.Kill(kid, unix.SIGKILL)
	waitFree(t, b.path("/dev/pts/0"))

	b.leads = []int{r.Terminal(0), -1}
	b.between = func(o *Opened, all []*restored) {
		batch := tracee.NewBatch()
		batch.Call(unix.SYS_SETSID)
		batch.Call(unix.SYS_IOCTL, 51, unix.TIOCSCTTY, 0)
		if err := all[0].tr.Run(batch); err != nil {
			t.Fatal(err)
		}
		if o.Slave(r.Terminal(0)) < 0 || o.Slave(r.Terminal(4)) >= 0 {
			t.Error("Slave says wrongly which slaves there are")
		}
	}
	all := b.restoreAll(t, r)
	sameTable(t, want, all[0])
	sameTable(t, wantKid, all[1])
	checkRestoredTerminals(t, all[0])
}

func waitFree(t *testing.T, name string) {
	t.Helper()
	for range 1000 {
		if _, err := os.Stat(name); os.IsNotExist(err) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%s never went away", name)
}

func checkTerminals(t *testing.T, r *Result, group, session int) {
	t.Helper()
	get := func(n int) *image.Terminal {
		i := r.Terminal(n)
		if i < 0 {
			t.Fatalf("terminal %d was not captured", n)
		}
		return r.Terminals[i]
	}
	a := get(0)
	if a.Winsize.Row != 31 || a.Winsize.Col != 99 || a.Group != group || a.Session != session {
		t.Errorf("terminal 0: %+v, want group %d and session %d", a, group, session)
	}
	if string(a.Input) != "line one\nline two\n\x00part" {
		t.Errorf("input %q", a.Input)
	}
	if want := "line one\r\nline two\r\npartoutput\r\n"; string(a.Output) != want {
		t.Errorf("output %q, want %q", a.Output, want)
	}
	if b := get(1); !b.Packet || string(b.Input) != "raw\x03\x00input" || string(b.Output) != "packet output\n" {
		t.Errorf("terminal 1: %+v %q %q", b, b.Input, b.Output)
	}
	if !get(2).MasterGone || get(2).SlaveGone {
		t.Errorf("terminal 2: %+v", get(2))
	}
	if !get(3).SlaveGone || get(3).MasterGone {
		t.Errorf("terminal 3: %+v", get(3))
	}
	if get(4).SlaveGone || !get(4).Locked {
		t.Errorf("terminal 4: %+v", get(4))
	}
}

func checkRestoredTerminals(t *testing.T, v *restored) {
	t.Helper()
	master, slave := v.fd(50), v.fd(51)
	if ws, err := unix.IoctlGetWinsize(slave, unix.TIOCGWINSZ); err != nil || ws.Row != 31 {
		t.Errorf("window %+v %v", ws, err)
	}
	expectRead(t, master, "line one\r\nline two\r\npartoutput\r\n")
	expectRead(t, slave, "line one\n")
	expectRead(t, slave, "line two\n")
	expectEOF(t, slave)
	if ready(slave, unix.POLLIN) {
		t.Error("a line that is not finished can be read")
	}
	if _, err := unix.Write(master, []byte("ial\x7fl\n")); err != nil {
		t.Fatal(err)
	}
	expectRead(t, slave, "partial\n")
	expectRead(t, v.fd(53), "raw\x03\x00input")
	expectRead(t, v.fd(52), "\x00packet output\n")
	var one [1]byte
	if n, err := unix.Read(v.fd(55), one[:]); n != 0 || err != nil {
		t.Errorf("read of a hung up slave: %d %v", n, err)
	}
	if _, err := unix.Read(v.fd(56), one[:]); err != unix.EIO {
		t.Errorf("read of a master whose slave was closed: %v", err)
	}
	if ready(v.fd(58), unix.POLLHUP) {
		t.Error("a master whose slave was never opened is hung up")
	}
}

// A session's terminal: the master is this process's, the program is bash.
func TestSessionTerminal(t *testing.T) {
	b := newBody(t)
	master, err := openIn(b.root, "/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(master) }()
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	p := b.start(t, "setsid", "bash", "-c", `exec 3>&1 </dev/pts/0 >/dev/pts/0 2>&1; for i in 4 5 6 7 8 9 10 11 250 251 252 253 254; do eval "exec $i>&-"; done; exec bash --norc --noediting`)
	say := func(s string) {
		t.Helper()
		if _, err := unix.Write(master, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	var heard string // and not yet asked for
	hear := func(fd int, want string) {
		t.Helper()
		buf := make([]byte, 4096)
		for deadline := time.Now().Add(5 * time.Second); !strings.Contains(heard, want); {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100); err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
			if n, err := unix.Read(fd, buf); err == nil {
				heard += string(buf[:n])
			}
			if time.Now().After(deadline) {
				t.Fatalf("heard %q, want %q", heard, want)
			}
		}
		_, heard, _ = strings.Cut(heard, want)
	}
	hear(master, "# ")
	say("exec 3>&-; x=41; stty rows 40 cols 132; echo go\n")
	hear(master, "\r\ngo\r\n")
	hear(master, "# ")
	env := p.env()
	env.SessionPTY = func(n int) (string, int, bool) { return "se-tty", master, n == 0 }
	// The shell is the child of setsid's fork if there was one; here it is p.
	proc := p.process()
	proc.Terminal = 0
	want := descriptions(t, p.Process.Pid)
	say("part of a li")
	var r *Result
	for range 20 {
		var c Capturer
		stopped(t, []int{p.Process.Pid}, func() { r, err = c.Capture([]Process{proc}, env) })
		if err != nil {
			t.Fatal(err)
		}
		closeBlobs(t, r)
	}
	term := r.Terminals[r.Terminal(0)]
	if string(term.Input) != "part of a li" || term.SessionID != "se-tty" || term.Winsize.Row != 40 || term.Session != proc.PID {
		t.Errorf("%+v, input %q", term, term.Input)
	}
	hear(master, "part of a li") // the echo was not touched
	say("\x15echo $((x + 1))\n")
	hear(master, "\r\n42\r\n")
	p.end()
	_ = unix.Close(master)
	master = -1
	waitFree(t, b.path("/dev/pts/0"))
	v := b.restore(t, r)
	sameTable(t, want, v)
	master = b.masters["se-tty"]
	defer func() { master = -1 }()
	say("ne\n")
	expectRead(t, v.fd(0), "part of a line\n")
	if _, err := unix.Write(v.fd(1), []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	hear(master, fmt.Sprintf("%s\r\n", "hello"))
}

// However a program has filled a terminal, all that it holds can be taken out
// and put back, here and in a new one.
func TestFullTerminals(t *testing.T) {
	b := newBody(t)
	p := b.python(t, `
import os, sys, tty
def full(*sizes):
    m, s = os.openpty(); tty.setraw(s)
    os.set_blocking(s, False); os.set_blocking(m, False)
    data = b"".join(b"%d." % i for i in range(20000))
    def fill(n):
        at = 0
        while True:
            try: k = os.write(s, data[at:at+n])
            except BlockingIOError: return at
            if k == 0: return at
            at += k
    def drain():
        out = b""
        while True:
            try: out += os.read(m, 65536)
            except BlockingIOError: return out
    fill(256); drain()                                # leaves small buffers to use again
    at = 0
    for n in sizes:
        while True:
            try: k = os.write(s, data[at:at+n])
            except BlockingIOError: break
            if k == 0: break
            at += k
    return m, data[:at], drain
all = [full(*sizes) for sizes in [(1,), (100,), (256,), (257,), (900,), (1024,), (1792,), (2048, 256, 1), (1024, 1792, 256, 1), (50000, 1)]]
print("ready", flush=True)
for line in sys.stdin:
    for m, data, drain in all:
        got = drain()
        if got != data: print(len(data), "were printed,", len(got), "came"); break
    else: print("whole", min(len(d) for _, d, _ in all), max(len(d) for _, d, _ in all))
    sys.stdout.flush()
`)
	var r *Result
	for range 3 {
		r = p.mustCapture(t)
	}
	want := map[int]string{}
	for _, x := range r.Terminals {
		want[x.Number] = string(x.Output)
	}
	if _, err := p.stdin.WriteString("look\n"); err != nil {
		t.Fatal(err)
	}
	line, err := p.stdout.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "whole ") {
		t.Errorf("%q %v", line, err)
	}
	t.Log(line)
	p.end()
	waitFree(t, b.path("/dev/pts/0"))
	v := b.restore(t, r)
	again := map[int]string{}
	for _, d := range r.Tables[0] {
		f := r.Files[d.File]
		if f.Kind != image.PTYMaster {
			continue
		}
		fd := v.fd(d.Number)
		for ready(fd, unix.POLLIN) {
			var buf [4096]byte
			n, err := unix.Read(fd, buf[:])
			if err != nil {
				t.Fatal(err)
			}
			again[r.Terminals[f.Terminal].Number] += string(buf[:n])
		}
	}
	for n, w := range want {
		if again[n] != w {
			t.Errorf("terminal %d held %d bytes, and %d when it was restored", n, len(w), len(again[n]))
		}
	}
}
