package descriptor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

const locksScript = `
import os, sys, fcntl, struct
os.chdir("/tmp")
def put(fd, n):
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def ofd(fd, typ, start, n): fcntl.fcntl(fd, 37, struct.pack("hhlli4x", typ, 0, start, n, 0))
for i, f in enumerate(["flock", "posix", "ofd", "lease", "read"]): put(os.open(f, os.O_RDWR | os.O_CREAT), 50 + i)
fcntl.flock(50, fcntl.LOCK_EX)
fcntl.lockf(51, fcntl.LOCK_EX, 10, 100)
fcntl.lockf(51, fcntl.LOCK_SH, 0, 500)
ofd(52, 1, 0, 5); ofd(52, 0, 7, 0)
fcntl.fcntl(53, 1024, fcntl.F_WRLCK)
put(os.open("read", os.O_RDONLY), 55); os.close(54)
fcntl.fcntl(55, 1024, fcntl.F_RDLCK)
put(os.open(".", os.O_RDONLY), 56); fcntl.flock(56, fcntl.LOCK_SH)
put(os.open("gone", os.O_RDWR | os.O_CREAT), 57); os.unlink("gone"); fcntl.lockf(57, fcntl.LOCK_EX)
if os.fork() == 0:
    put(os.open("posix", os.O_RDWR), 60)
    fcntl.lockf(60, fcntl.LOCK_EX, 10, 200)
    print("ready", os.getpid(), flush=True)
sys.stdin.read()
`

// lockLines are the locks that fdinfo shows of each descriptor, without what
// differs from one incarnation to the next.
func lockLines(t *testing.T, pid int) map[int][]string {
	t.Helper()
	out := map[int][]string{}
	for n, d := range descriptions(t, pid) {
		_ = d
		text := info(t, pid, n)
		for l := range strings.Lines(text) {
			if f := strings.Fields(l); len(f) == 9 && f[0] == "lock:" {
				mine := f[5] == fmt.Sprint(pid)
				out[n] = append(out[n], fmt.Sprint(f[2:5], f[7:], mine || f[2] != "POSIX"))
			}
		}
		slices.Sort(out[n])
	}
	return out
}

func TestLocks(t *testing.T) {
	b := newBody(t)
	p, kid, kidFD := b.pythonWithChild(t, locksScript)
	want := []map[int][]string{lockLines(t, p.Process.Pid), lockLines(t, kid)}
	procs := []Process{p.process(), {HostPID: kid, PID: kid, PIDFD: kidFD, Comm: "kid", Group: kid, Terminal: -1}}
	var r *Result
	var err error
	var c Capturer
	stopped(t, []int{p.Process.Pid, kid}, func() { r, err = c.Capture(procs, p.env()) })
	if err != nil {
		t.Fatal(err)
	}
	closeBlobs(t, r)
	for i, pid := range []int{p.Process.Pid, kid} {
		if now := lockLines(t, pid); fmt.Sprint(now) != fmt.Sprint(want[i]) {
			t.Errorf("live locks are %v, were %v", now, want[i])
		}
	}
	if n := len(want[0]); n != 7 {
		t.Fatalf("%d descriptors with locks: %v", n, want[0])
	}
	p.end() // their locks would be in the way
	_ = unix.Kill(kid, unix.SIGKILL)
	fds := []unix.PollFd{{Fd: int32(kidFD), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 5000); err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Files {
		f.Owner = 0 // of the leases' signals, who is no more
	}
	all := b.restoreAll(t, r)
	for i, v := range all {
		if got := lockLines(t, v.pid); fmt.Sprint(got) != fmt.Sprint(want[i]) {
			t.Errorf("locks are %v, were %v", got, want[i])
		}
	}
}

func TestParseLocks(t *testing.T) {
	text := "pos:\t0\nlock:\t1: FLOCK  ADVISORY  READ  713 00:2b:17 0 EOF\n" +
		"lock:\t2: POSIX  ADVISORY  WRITE 4321 00:2b:17 128 127\n"
	if _, strange := parseLocks([]byte(text)); strange == "" {
		t.Error("a lock of a negative length was understood")
	}
	text = strings.Replace(text, "128 127", "128 137", 1)
	got, strange := parseLocks([]byte(text))
	want := []image.Lock{{Kind: image.Flock}, {Kind: image.POSIX, Write: true, Start: 128, Length: 10}}
	if strange != "" || !slices.Equal(got, want) {
		t.Errorf("%+v %q", got, strange)
	}
	for _, bad := range []string{"lock:\n", "lock: 1: LEASE BREAKING READ 713 00:2b:17 0 EOF\n", "lock: 1: FLOCK ADVISORY UNLCK 1 0:0:1 0 EOF"} {
		if got, strange := parseLocks([]byte(bad)); strange == "" && bad != "lock:\n" {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseLocks(f *testing.F) {
	f.Add("lock:\t1: FLOCK  ADVISORY  READ  713 00:2b:17 0 EOF\n")
	f.Add("lock:\t1: POSIX  ADVISORY  WRITE -1 00:2b:17 5 9223372036854775807\n")
	f.Fuzz(func(t *testing.T, text string) {
		locks, _ := parseLocks([]byte(text))
		for _, l := range locks {
			if l.Start < 0 || l.Length < 0 {
				t.Errorf("%q: %+v", text, l)
			}
		}
	})
}
