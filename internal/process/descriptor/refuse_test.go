package descriptor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

// Every one of these is refused by name, with process and number, and the live
// process is as before.
func TestRefusals(t *testing.T) {
	const prelude = `
import os, sys, socket, fcntl, struct, ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
def put(fd):
    assert fd >= 0, ctypes.get_errno()
    os.dup2(fd, 77); os.close(fd)
os.chdir("/tmp")
keep = []
`
	tests := []struct{ name, script, want string }{
		{"raw", `put(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).detach())`, "a raw IP socket"},
		{"waiting with data", `l = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(l.getsockname()); c.send(b"x"); put(l.detach())`, "a listening TCP socket with a connection that has unread data"},
		{"waiting unix socket with data", `l = socket.socket(socket.AF_UNIX); l.bind("\0refused"); l.listen(); c = socket.socket(socket.AF_UNIX); c.connect("\0refused"); c.send(b"x"); put(l.detach())`, "a listening unix socket with a connection that has unread data"},
		{"urgent data", `l = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(l.getsockname()); s = l.accept()[0]; c.send(b"x", socket.MSG_OOB); put(s.detach())`, "a TCP socket with unread urgent data"},
		{"packet", `put(socket.socket(socket.AF_PACKET, socket.SOCK_RAW).detach())`, "a packet socket"},
		{"memfd of huge pages", `put(os.memfd_create("huge", 4))`, "a memfd of huge pages"},
		{"pidfd of a thread", `import threading; th = threading.Thread(target=signal.pause, daemon=True); th.start(); put(os.pidfd_open(th.native_id, os.O_EXCL))`, "a pidfd of thread"},
		{"lease that is broken", `put(os.open("f", os.O_RDONLY | os.O_CREAT)); signal.signal(signal.SIGIO, signal.SIG_IGN); fcntl.fcntl(77, 1024, fcntl.F_RDLCK)
try: os.open("f", os.O_WRONLY | os.O_NONBLOCK)
except BlockingIOError: pass`, "the file /tmp/f with a lock (1: LEASE BREAKING"},
		{"fanotify", `put(libc.fanotify_init(0, 0))`, "a fanotify group"},
		{"userfaultfd", `put(libc.syscall(323, 1))`, "a userfaultfd"},
		{"bpf map", `put(libc.syscall(321, 0, ctypes.byref((ctypes.c_uint32 * 32)(2, 4, 4, 1)), 128))`, "a BPF map"},
		{"perf event", `put(libc.syscall(298, ctypes.byref((ctypes.c_uint32 * 32)(1, 64, 1)), 0, -1, -1, 0))`, "a perf event"},
		{"io_uring", `put(libc.syscall(425, 4, ctypes.byref((ctypes.c_uint32 * 30)())))`, "an io_uring"},
		{"landlock", `put(libc.syscall(444, ctypes.byref(ctypes.c_uint64(1)), 8, 0))`, "a Landlock ruleset"},
		{"namespace", `put(os.open("/proc/self/ns/net", os.O_RDONLY))`, "a namespace"},
		{"fscontext", `put(libc.syscall(430, b"tmpfs", 0))`, "a file system context"},
		{"kmsg", `os.mknod("kmsg", 0o020600, os.makedev(1, 11)); put(os.open("kmsg", os.O_RDONLY))`, "the device /tmp/kmsg"},
		{"other name", `put(os.open("f", os.O_RDWR | os.O_CREAT)); os.mkdir("d"); os.link("f", "d/g"); os.unlink("f")`, "the file /tmp/f, which was unlinked there but has another name elsewhere,"},
		{"large", `put(os.open("f", os.O_RDWR | os.O_CREAT)); os.unlink("f"); os.posix_fallocate(77, 0, 3 << 20)`, "the deleted file /tmp/f of 3145728 bytes"},
		{"terminal's master for reading", `put(os.open("/dev/ptmx", os.O_RDONLY | os.O_NOCTTY))`, "a terminal's master that is open for reading or for writing alone"},
		{"full pipes", `for i in range(3):
    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.write(w, b"x" * (1 << 20))`, "a pipe with 1048576 unread bytes"},
		{"descriptor of who had a name", `l = socket.socket(socket.AF_UNIX); l.bind("\0used"); l.listen(); c = socket.socket(socket.AF_UNIX); c.bind("\0user"); c.connect("\0used")
put(l.accept()[0].detach()); socket.send_fds(c, [b"x"], os.pipe()); c.close(); c = socket.socket(socket.AF_UNIX); c.bind("\0user")`, "a unix socket whose other end was closed and had the name @user,"},
		{"dead process", `pid = os.fork()
if pid == 0: signal.pause()
put(os.open("/proc/%d/stat" % pid, os.O_RDONLY)); os.kill(pid, 9); os.waitpid(pid, 0)`, "whose process or object has gone,"},
		{"another opening of stderr", `put(os.open("/proc/self/fd/2", os.O_WRONLY))`, ""},
		{"epoll of a socket", `import select; e = select.epoll(); s = socket.socket(); e.register(s.fileno(), 1); put(os.dup(e.fileno())); e.close(); fd = os.dup(s.fileno()); s.close()`, ""},
	}
	b := newBody(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := b.python(t, prelude+"for f in ('f', 'kmsg'):\n    if os.path.exists(f): os.unlink(f)\n"+tt.script+`
print("ready", flush=True)
sys.stdin.read()`)
			defer p.end()
			before := descriptions(t, p.Process.Pid)
			env := p.env()
			env.MaxContent = 2 << 20
			var err error
			var r *Result
			stopped(t, []int{p.Process.Pid}, func() {
				var c Capturer
				r, err = c.Capture([]Process{p.process()}, env)
			})
			closeBlobs(t, r)
			for n, w := range descriptions(t, p.Process.Pid) {
				if before[n] != w {
					t.Errorf("live descriptor %d is %q, was %q", n, w, before[n])
				}
			}
			if tt.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !fault.Is(err, fault.Uncapturable) {
				t.Fatalf("error %v, result %v", err, r != nil)
			}
			for _, s := range []string{tt.want, fmt.Sprintf("process %d (python3)", p.Process.Pid)} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
			if fault.HintOf(err) == "" {
				t.Error("it says not what to do")
			}
		})
	}
}
