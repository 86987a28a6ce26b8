package engine_test

import (
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// What a checkpoint cannot keep is refused by name before anything changes. The
// program goes on, and when the cause is gone the next checkpoint works.
func TestKindsThatAreRefused(t *testing.T) {
	const kid = `
r, w = os.pipe()
def run():
    libc.prctl(15, b'offender', 0, 0, 0)
    bad(); os.write(w, b'!')
    while True: time.sleep(1000)
kid = child(run); same(os.read(r, 1), b'!')
`
	const endKid = `os.kill(kid, 9); os.waitpid(kid, 0)`
	// Whoever opens such a file waits for its holder, who is told.
	const leased = `
import fcntl
told = []; signal.signal(signal.SIGIO, lambda *a: told.append(1))
def lease(fd): global f; f = fd; fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
`
	const endLease = `same((fcntl.fcntl(f, fcntl.F_GETLEASE), told), (fcntl.F_WRLCK, [])); os.close(f)`
	const far = `
os.chdir('/srv')
for i in range(21): os.makedirs('d' * 200, exist_ok=True); os.chdir('d' * 200)
`
	const endFar = `os.chdir('/'); f < 0 or os.close(f); import shutil; shutil.rmtree('/srv/' + 'd' * 200)`
	cases := []struct {
		name, begin, end string
		want             []string // all of which the message has
	}{
		{"raw socket", `s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)`, `s.close()`, []string{"a raw IP socket"}},
		{"inotify watch of a deleted file", `f = call(libc.inotify_init); g = open('/root/made', 'w'); call(libc.inotify_add_watch, f, b'/root/made', 0x2); os.unlink('/root/made')`, `os.close(f); g.close()`, []string{"an inotify watch (1) of a file that has no name"}},
		{"a part of SysV shared memory", "i = call(libc.shmget, 0, 12288, 0o1600); libc.shmat.restype = ctypes.c_void_p; at = libc.shmat(i, None, 0); call(libc.shmctl, i, 0, None); libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]; call(libc.munmap, at + 4096, 4096)", `call(libc.munmap, at, 4096); call(libc.munmap, at + 8192, 4096)`, []string{"python3", "unmapped a part of the System V shared memory"}},
		{"a write lease of a file in /dev/shm", leased + `lease(os.open('/dev/shm/leased', os.O_RDWR | os.O_CREAT))`, endLease, []string{"the file /dev/shm/leased with a write lease"}},
		{"a write lease of a file in /dev", leased + `lease(os.open('/dev/leased', os.O_RDWR | os.O_CREAT))`, endLease + `; os.remove('/dev/leased')`, []string{"the file /dev/leased with a write lease"}},
		{"a write lease of a mapped memfd", leased + `g = os.memfd_create('leased'); f = os.open('/proc/self/fd/%d' % g, os.O_RDWR); os.close(g); lease(f); os.ftruncate(f, 4096); m = mmap.mmap(f, 4096); m[0] = 7`, endLease + `; m.close()`, []string{"the memfd leased with a write lease"}},
		{"a write lease of a deleted file", leased + `lease(os.open('/root/leased', os.O_RDWR | os.O_CREAT)); os.unlink('/root/leased')`, endLease, []string{"the deleted file /root/leased with a write lease"}},
		{"a working directory too far down", far + `f = -1`, endFar, []string{"python3", "has a working directory whose path is longer than the 4095 bytes"}},
		{"a working directory of another process", `p = subprocess.Popen(['sleep', '1000']); os.chdir('/proc/%d/fd' % p.pid)`, `os.chdir('/proc/self/fd'); p.kill(); p.wait()`, []string{"python3", "its working directory that belongs to another process", "/fd"}},
		{"a working directory of a process that has ended", `p = subprocess.Popen(['sleep', '1000']); os.chdir('/proc/%d' % p.pid); p.kill(); p.wait()`, `os.chdir('/proc/1'); os.chdir('/')`, []string{"python3", "its working directory that belongs to another process"}},
		{"the place of a message queue", `os.close(os.open('/dev/mqueue/q', os.O_RDWR | os.O_CREAT)); f = os.open('/dev/mqueue/q', os.O_PATH)`, `os.close(f); os.unlink('/dev/mqueue/q')`, []string{"python3", "the place of a message queue (O_PATH, /dev/mqueue/q)"}},
		{"the place of a bound socket", `s = socket.socket(socket.AF_UNIX); s.bind('/root/place'); f = os.open('/root/place', os.O_PATH)`, `os.close(f); s.close(); os.unlink('/root/place')`, []string{"python3", "the place of a socket that is bound (O_PATH, /root/place)"}},
		{"a bound socket with two names", `s = socket.socket(socket.AF_UNIX); s.bind('/root/place'); os.link('/root/place', '/root/other')`, `os.unlink('/root/other'); s.close(); os.unlink('/root/place')`, []string{"python3", "a unix socket whose file /root/", "has another name"}},
		{"reserved huge pages of a memfd that is closed", `f = call(libc.memfd_create, b'some', 4); os.ftruncate(f, 2 << 20); m = libc.mmap(None, 2 << 20, 3, 0x4001, f, 0); os.close(f)`, `libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]; call(libc.munmap, m, 2 << 20)`, []string{"python3", "maps huge pages that were reserved by hand at 0x"}},
		{"a directory too far down", far + `f = os.open('.', os.O_RDONLY); os.chdir('/')`, endFar, []string{"python3", "a file whose path is longer than the 4095 bytes", "as descriptor "}},
		{"a mapped file too far down", far + `f = os.open('m', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 4096); m = libc.mmap(None, 4096, 1, 2, f, 0); os.close(f); f = -1; os.chdir('/')`,
			"libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]; libc.munmap(m, 4096); " + endFar, []string{"python3", "maps a file whose path is longer than the 4095 bytes"}},
		{"traced by a debugger inside", `
def bad(): call(libc.ptrace, 0, 0, None, None)
` + kid, endKid, []string{"offender", "traced by another process"}},
		{"thousands of queued signals", `
def bad():
    signal.pthread_sigmask(signal.SIG_BLOCK, [42])
    for i in range(4200): call(libc.sigqueue, os.getpid(), 42, None)
` + kid, endKid, []string{"offender", "more than 4096 signals queued"}},
		{"two processes with one table of descriptors", `
r, w = os.pipe()
k = libc.syscall(56, 0x400 | 17, 0, 0, 0, 0) # clone: CLONE_FILES, SIGCHLD
if k == 0:
    while True: time.sleep(1000)
`, `os.kill(k, 9); os.waitpid(k, 0)`, []string{"share one table of descriptors"}},
		{"two processes with one directory", `
k = libc.syscall(56, 0x200 | 17, 0, 0, 0, 0)
if k == 0:
    while True: time.sleep(1000)
`, `os.kill(k, 9); os.waitpid(k, 0)`, []string{"share one current directory"}},
	}
	h := newHost(t)
	outer := t
	box := h.create()
	x := h.obedient(box)
	x.must("setup", `
counter = 0
def tick():
    global counter
    while True: counter += 1; time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
kept = open('/root/kept', 'w+')
fds = lambda: sorted(os.listdir('/proc/self/fd'))
`)
	h.checkpoint(box)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h.t, x.t = t, t
			defer func() { h.t = outer }()
			x.must("begin", c.begin)
			before := x.must("state", "(fds(), open('/proc/self/maps').read().count('\\n'), status('self', 'TracerPid'), [stat(int(p))['state'] in 'SRZI' or stat(int(p)) for p in os.listdir('/proc') if p.isdigit()])")
			for range 2 {
				_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
				if !fault.Is(err, fault.Uncapturable) {
					t.Fatalf("got %v", err)
				}
				for _, w := range c.want {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%q lacks %q", err, w)
					}
				}
			}
			after := x.must("state", "(fds(), open('/proc/self/maps').read().count('\\n'), status('self', 'TracerPid'), [stat(int(p))['state'] in 'SRZI' or stat(int(p)) for p in os.listdir('/proc') if p.isdigit()])")
			if before != after {
				t.Errorf("%s, before %s", after, before)
			}
			x.must("going on", "a = counter; until(lambda: counter > a + 3)")
			x.must("end", c.end)
			last := h.checkpoint(box)
			x.must("going on", "a = counter; until(lambda: counter > a + 3)")
			h.t = outer // which the new session belongs to
			_, ss := h.rollback(box, last.ID)
			x = ss[x.id]
			x.t = t
			x.must("going on after rollback", "a = counter; until(lambda: counter > a + 3)")
		})
	}
}
