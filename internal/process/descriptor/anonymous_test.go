package descriptor

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

const anonymousScript = `
import os, sys, ctypes, signal, struct, time, fcntl, mmap
libc = ctypes.CDLL(None, use_errno=True)
def ok(r):
    assert r >= 0, ctypes.get_errno()
    return r
def put(fd, n):
    os.dup2(ok(fd), n, inheritable=n % 2 == 0); os.close(fd)
def settime(fd, flags, value, interval=0):
    s = lambda x: (int(x), int(x % 1 * 1e9))
    ok(libc.timerfd_settime(fd, flags, struct.pack("4q", *s(interval), *s(value)), None))
put(libc.timerfd_create(1, 0), 50); settime(50, 0, 1000, 5)          # CLOCK_MONOTONIC
put(libc.timerfd_create(1, 0o4000), 51); settime(51, 1, time.clock_gettime(1) + 2000)
put(libc.timerfd_create(0, 0), 52); settime(52, 3, time.time() + 3000)  # CLOCK_REALTIME, TFD_TIMER_CANCEL_ON_SET
put(libc.timerfd_create(7, 0), 53); settime(53, 0, 0.001, 0.002)     # CLOCK_BOOTTIME
put(libc.timerfd_create(1, 0), 54); settime(54, 0, 0.001)            # fires once
put(libc.timerfd_create(1, 0), 55)                                   # never set
put(libc.timerfd_create(7, 0), 56); settime(56, 0, 0.05, 500)
put(libc.signalfd(-1, ctypes.byref(ctypes.c_uint64(1 << 9 | 1 << 63)), 0o4000), 60)
def memfd(name, n, flags=0):
    put(os.memfd_create(name, os.MFD_CLOEXEC | flags), n)
    os.write(n, b"content of " + name.encode())
memfd("plain", 70); os.ftruncate(70, 1 << 30); os.pwrite(70, b"far", 1 << 29); os.lseek(70, 3, 0)
put(os.open("/proc/self/fd/70", os.O_RDONLY), 71)                    # another opening
memfd("sealed", 72, 2); fcntl.fcntl(72, 1033, 0x2 | 0x4 | 0x8); os.fchmod(72, 0o640)
memfd("future", 73, 2); m = mmap.mmap(73, 10); fcntl.fcntl(73, 1033, 0x10)
put(os.open("/proc/self/fd/73", os.O_RDONLY), 74)
memfd("", 75)
kid = os.fork()
if kid == 0:
    signal.pause()
dead = os.fork()
if dead == 0: os._exit(3)
put(os.pidfd_open(kid), 80); fcntl.fcntl(80, 4, os.O_NONBLOCK)
os.dup2(80, 81)
put(os.pidfd_open(kid), 82)
put(os.pidfd_open(dead), 83); put(os.pidfd_open(dead, os.O_NONBLOCK), 84); os.waitpid(dead, 0)
time.sleep(0.06)
print("ready", kid, flush=True)
sys.stdin.read()
`

func TestAnonymousFiles(t *testing.T) {
	b := newBody(t)
	p, kid, kidFD := b.pythonWithChild(t, anonymousScript)
	procs := []Process{p.process(), {HostPID: kid, PID: kid, PIDFD: kidFD, Comm: "kid", Group: kid, Terminal: -1}}
	var r *Result
	var err error
	var c Capturer
	var want map[int]string
	stopped(t, []int{p.Process.Pid, kid}, func() {
		r, err = c.Capture(procs, p.env())
		want = descriptions(t, p.Process.Pid)
	})
	if err != nil {
		t.Fatal(err)
	}
	closeBlobs(t, r)
	b.target = Target{
		Clocks: Clocks{Monotonic: 0, Boottime: 0},
		Exists: func(pid int) bool { return pid == kid },
		Ended:  endedProcess,
	}
	v := b.restoreAll(t, r)[0]
	delete(want, 83) // another process, which has ended as well
	delete(want, 84)
	got := descriptions(t, v.pid)
	for n, w := range want {
		if got[n] != w {
			t.Errorf("descriptor %d is %q, was %q", n, got[n], w)
		}
	}
	for _, n := range []int{83, 84} {
		if want, flags := -1, fileAt(r, 0, n).Flags; fileAt(r, 0, n).PID != 0 {
			t.Errorf("descriptor %d refers to %d, want %d", n, fileAt(r, 0, n).PID, want)
		} else if now, _ := unix.FcntlInt(uintptr(v.fd(n)), unix.F_GETFL, 0); now != flags {
			t.Errorf("descriptor %d has flags %#o, want %#o", n, now, flags)
		}
		if err := unix.PidfdSendSignal(v.fd(n), 0, nil, 0); err != unix.ESRCH {
			t.Errorf("descriptor %d of a process that has ended: %v", n, err)
		}
	}
	for _, at := range []struct {
		n    int
		left time.Duration
	}{{50, 1000 * time.Second}, {51, 2000 * time.Second}, {52, 3000 * time.Second}, {54, 0}, {55, 0}, {56, 500 * time.Second}} {
		var left unix.ItimerSpec
		if err := unix.TimerfdGettime(v.fd(at.n), &left); err != nil {
			t.Fatal(err)
		}
		if d := at.left - time.Duration(left.Value.Nano()); d < 0 || d > 30*time.Second {
			t.Errorf("timer %d has %v left, want about %v", at.n, time.Duration(left.Value.Nano()), at.left)
		}
	}
	var ticks [8]byte
	if _, err := unix.Read(v.fd(53), ticks[:]); err != nil || binary.LittleEndian.Uint64(ticks[:]) < 20 {
		t.Errorf("expirations %v (%v)", ticks, err)
	}
	if _, err := unix.Read(v.fd(54), ticks[:]); err != nil || ticks[0] != 1 {
		t.Errorf("expirations %v (%v)", ticks, err)
	}
	content(t, v, 70, "content of plain", 0)
	content(t, v, 71, "far", 1<<29)
	content(t, v, 72, "content of sealed", 0)
	if _, err := unix.Pwrite(v.fd(70), []byte("both"), 100); err != nil {
		t.Fatal(err)
	}
	content(t, v, 71, "both", 100)
	var st unix.Stat_t
	if err := unix.Fstat(v.fd(70), &st); err != nil || st.Blocks > 100 {
		t.Errorf("a sparse memfd has %d blocks (%v)", st.Blocks, err)
	}
	for n, seals := range map[int]int{70: unix.F_SEAL_SEAL, 72: 0xe, 73: 0x10, 74: 0x10, 75: unix.F_SEAL_SEAL} {
		if got, err := unix.FcntlInt(uintptr(v.fd(n)), unix.F_GET_SEALS, 0); err != nil || got != seals {
			t.Errorf("seals of descriptor %d: %#x (%v), want %#x", n, got, err, seals)
		}
	}
	if _, err := unix.Pwrite(v.fd(72), []byte("x"), 0); err != unix.EPERM {
		t.Errorf("write to a sealed memfd: %v", err)
	}
	if same, err := sameDescription(v.fd(80), v.fd(81)); err != nil || !same {
		t.Errorf("descriptors 80 and 81 share no description (%v)", err)
	}
}

// endedProcess is what a restore makes in the incarnation.
func endedProcess() (int, error) {
	pidfd := -1
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{PidFD: &pidfd}})
	if err != nil {
		return -1, err
	}
	_, err = p.Wait()
	return pidfd, err
}

func TestTimersThatExpiredMeanwhile(t *testing.T) {
	var c Clocks
	now, err := c.Now(unix.CLOCK_MONOTONIC, false)
	if err != nil {
		t.Fatal(err)
	}
	const ms = int64(time.Millisecond)
	for _, tt := range []struct {
		expires, interval int64
		least, most       int64
		missed            uint64
	}{
		{0, 0, 0, 0, 0},
		{0, 5, 0, 0, 0},
		{now - 5*ms, 0, 1, 1, 0},
		{now + 1000*ms, 10 * ms, 500 * ms, 1000 * ms, 0},
		{now - 50_000*ms, 100_000 * ms, 49_000 * ms, 50_000 * ms, 1},
		{now - 250_000*ms, 100_000 * ms, 49_000 * ms, 50_000 * ms, 3},
	} {
		due, missed, err := c.Due(image.Timer{Clock: unix.CLOCK_MONOTONIC, Expires: tt.expires, Interval: tt.interval}, false)
		if err != nil || due < tt.least || due > tt.most || missed != tt.missed {
			t.Errorf("%+v: due in %d, missed %d, %v", tt, due, missed, err)
		}
	}
	ahead := Clocks{Monotonic: time.Hour, Boottime: 2 * time.Hour}
	for clock, want := range map[int]int64{unix.CLOCK_MONOTONIC: 3600, unix.CLOCK_REALTIME: 3600, unix.CLOCK_BOOTTIME: 7200} {
		a, _ := ahead.Now(clock, false)
		b, _ := c.Now(clock, false)
		if d := (a - b) / 1e9; d < want-1 || d > want+1 {
			t.Errorf("clock %d is %d seconds ahead, want %d", clock, d, want)
		}
	}
}

func TestParsePIDFD(t *testing.T) {
	for text, want := range map[string]int{
		"Pid:\t200\nNSpid:\t200\t5\n": 5, "Pid:\t-1\nNSpid:\t-1\n": 0, "Pid:\t0\nNSpid:\t0\n": -1,
	} {
		if got, err := parsePIDFD([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "Pid:\tx\n", "Pid:\t5\nNSpid:\tx\n"} {
		if got, err := parsePIDFD([]byte(bad)); err == nil {
			t.Errorf("%q: %d", bad, got)
		}
	}
	if _, _, _, err := parseTimer([]byte(fmt.Sprintf("clockid: %d\nticks: x\n", 1))); err == nil {
		t.Error("a timer without ticks was understood")
	}
}
