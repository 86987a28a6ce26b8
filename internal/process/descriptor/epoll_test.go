package descriptor

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

const epollScript = `
import os, sys, select, ctypes
libc = ctypes.CDLL(None)
def put(fd, n):
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
def eventfd(n, flags): return libc.eventfd(n, flags)
put(eventfd(5, 1), 50)                            # semaphore
put(eventfd(0, 0o4000), 51); os.write(51, (0x123456789).to_bytes(8, "little"))
r, w = os.pipe(); put(r, 52); put(w, 53); os.write(53, b"x")
put(eventfd(0, 0), 54)
E = select
class ev(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]
def add(ep, fd, events, data):
    e = ev(events, data)
    assert libc.epoll_ctl(ep, 1, fd, ctypes.byref(e)) == 0
def wait(ep):
    e = (ev * 8)()
    return libc.epoll_wait(ep, e, 8, 0)
put(libc.epoll_create1(0o2000000), 60)
add(60, 50, E.EPOLLIN | E.EPOLLONESHOT, 7)        # fires now
assert wait(60) == 1
add(60, 51, E.EPOLLIN | E.EPOLLET, 0xabcdef)
add(60, 54, E.EPOLLIN, 0x1122334455667788)        # not ready
x = eventfd(1, 0); add(60, x, E.EPOLLIN, 99); put(x, 55)     # its number is free again
y = eventfd(1, 0); os.dup2(y, 56); os.close(y); add(60, 56, E.EPOLLIN, 98)
z = os.dup(56); os.dup2(52, 56); os.dup2(z, 57); os.close(z) # 56 is the pipe now, the eventfd is 57
add(60, 52, E.EPOLLIN, 97)
put(libc.epoll_create1(0), 61); add(61, 60, E.EPOLLIN, 1)    # nested
pid = os.fork()
if pid == 0:                                      # the child alone has the epoll's one target
    put(libc.epoll_create1(0), 62)
    add(62, 53, E.EPOLLOUT | E.EPOLLERR, 5)
    add(62, 52, E.EPOLLIN, 6)
    os.close(52)                                  # the parent still has it
    print("ready", os.getpid(), flush=True)
    while True: select.select([], [], [])
sys.stdin.read()
`

func TestEpollAndEventfd(t *testing.T) {
	b := newBody(t)
	p, kid, kidFD := b.pythonWithChild(t, epollScript)
	want := descriptions(t, p.Process.Pid)
	wantKid := descriptions(t, kid)
	procs := []Process{p.process(), {HostPID: kid, PID: kid, PIDFD: kidFD, Comm: "kid", Group: kid, Terminal: -1}}
	var r *Result
	var err error
	var c Capturer
	stopped(t, []int{p.Process.Pid, kid}, func() { r, err = c.Capture(procs, p.env()) })
	if err != nil {
		t.Fatal(err)
	}
	closeBlobs(t, r)
	if f := fileAt(r, 0, 60); len(f.Watches) != 6 {
		t.Fatalf("watches %+v", f.Watches)
	}
	if r.Files[watchOf(t, fileAt(r, 0, 60), 99).File] != fileAt(r, 0, 55) || r.Files[watchOf(t, fileAt(r, 0, 60), 98).File] != fileAt(r, 0, 57) {
		t.Error("a target whose number was closed is taken for another")
	}
	all := b.restoreAll(t, r)
	sameTable(t, want, all[0])
	sameTable(t, wantKid, all[1])
	for n := range want {
		if fileAt(r, 1, n) != nil && fileAt(r, 0, n) == fileAt(r, 1, n) {
			if same, err := sameDescription(all[0].fd(n), all[1].fd(n)); err != nil || !same {
				t.Errorf("descriptor %d is not shared with the child (%v)", n, err)
			}
		}
	}
	expectEvents(t, all[0].fd(60), 0xabcdef, 99, 98, 97)
	expectEvents(t, all[0].fd(61), 1)
	if _, err := unix.Write(all[0].fd(54), []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	expectEvents(t, all[0].fd(60), 0x1122334455667788, 99, 98, 97) // the edge was seen
	expectEvents(t, all[1].fd(62), 5, 6)
	var count [8]byte
	if _, err := unix.Read(all[0].fd(50), count[:]); err != nil || count[0] != 1 {
		t.Errorf("semaphore read %v %v", count, err)
	}
}

// An epoll of a process that is completed first watches what only the second has, and
// has to open itself.
func TestEpollOfLateFilesOfAnother(t *testing.T) {
	b := newBody(t)
	p, kid, kidFD := b.pythonWithChild(t, `
import os, sys, select, ctypes
libc = ctypes.CDLL(None)
os.mkdir("/tmp/watched")
n = libc.inotify_init1(0o4000); libc.inotify_add_watch(n, b"/tmp/watched", 0x100); os.dup2(n, 70); os.close(n)
e = select.epoll(); e.register(70, select.EPOLLIN); os.dup2(e.fileno(), 60); e.close()
if os.fork() == 0:
    os.close(60)
    print("ready", os.getpid(), flush=True)
    while True: select.select([], [], [])
os.close(70)
sys.stdin.read()
`)
	procs := []Process{p.process(), {HostPID: kid, PID: kid, PIDFD: kidFD, Comm: "kid", Group: kid, Terminal: -1}}
	var r *Result
	var err error
	var c Capturer
	stopped(t, []int{p.Process.Pid, kid}, func() { r, err = c.Capture(procs, p.env()) })
	if err != nil {
		t.Fatal(err)
	}
	closeBlobs(t, r)
	all := b.restoreAll(t, r)
	expectEvents(t, all[0].fd(60))
	if err := os.WriteFile(b.path("/tmp/watched/new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	events := []unix.EpollEvent{{}}
	if n, err := unix.EpollWait(all[0].fd(60), events, 5000); err != nil || n != 1 || events[0].Fd != 70 {
		t.Errorf("%d events (%v), %v", n, events, err)
	}
	var event [64]byte
	if n, err := unix.Read(all[1].fd(70), event[:]); err != nil || !strings.HasPrefix(string(event[unix.SizeofInotifyEvent:n]), "new") {
		t.Errorf("read %q, %v", event[:max(0, n)], err)
	}
}

func watchOf(t *testing.T, f *image.File, data uint64) image.Watch {
	t.Helper()
	for _, w := range f.Watches {
		if w.Data == data {
			return w
		}
	}
	t.Fatalf("no watch with data %d", data)
	return image.Watch{}
}

func expectEvents(t *testing.T, epoll int, want ...uint64) {
	t.Helper()
	got := map[uint64]bool{}
	var ev [16]unix.EpollEvent
	n, err := unix.EpollWait(epoll, ev[:], 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ev[:n] {
		got[uint64(uint32(e.Fd))|uint64(uint32(e.Pad))<<32] = true
	}
	if len(got) != len(want) {
		t.Errorf("events %v, want %v", got, want)
	}
	for _, d := range want {
		if !got[d] {
			t.Errorf("no event %#x among %v", d, got)
		}
	}
}

func TestParseWatches(t *testing.T) {
	text := "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1061\n" +
		"tfd:        5 events:       19 data:                7  pos:0 ino:e sdev:f\n" +
		"tfd:       77 events: c0000001 data: 1122334455667788  pos:-1 ino:1234abcd sdev:0\n"
	got, err := parseWatches([]byte(text))
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v %v", got, err)
	}
	if got[0].watch != (image.Watch{Number: 5, Events: 0x19, Data: 7}) || got[0].ino != 0xe {
		t.Errorf("%+v", got[0])
	}
	if got[1].watch != (image.Watch{Number: 77, Events: 0xc0000001, Data: 0x1122334455667788}) || got[1].ino != 0x1234abcd {
		t.Errorf("%+v", got[1])
	}
	for _, bad := range []string{"tfd:\n", "tfd: 5 events: 19\n", "tfd: x events: 1 data: 1 pos:0 ino:1 sdev:1\n"} {
		if _, err := parseWatches([]byte(bad)); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}

func FuzzParseWatches(f *testing.F) {
	f.Add("tfd:        5 events:       19 data:                7  pos:0 ino:e sdev:f\n")
	f.Add("tfd:tfd:tfd: :::\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseWatches([]byte(text))
		if err == nil && len(got) > strings.Count(text, "tfd:") {
			t.Errorf("%d entries in %q", len(got), text)
		}
	})
}
