package sandbox_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// escape tries, as root inside, what must not work, and prints one line for
// each thing that did. SOCKET and FILE are the host's.
const escape = `
import ctypes, errno, os, resource, socket, struct, sys
fds = [int(f) for f in os.listdir("/proc/self/fd")]
if sorted(fds)[:-1] != [0, 1, 2]: print("descriptors:", fds)
libc = ctypes.CDLL(None, use_errno=True)
def call(*a):
    r = libc.syscall(*[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    if r < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r
def attempt(name, f):
    try: r = f()
    except (OSError, ValueError) as e: return
    print(name, "worked:", r)
def put(path, text):
    with open(path, "w") as f: f.write(text)
attempt("mount", lambda: call(165, b"x", b"/mnt", b"tmpfs", 0, 0))
attempt("remount of /proc/sys", lambda: call(165, b"x", b"/proc/sys", 0, 32 | 4096, 0))
attempt("umount of a mask", lambda: call(166, b"/proc/kcore", 2))
attempt("fsopen", lambda: call(430, b"tmpfs", 0))
attempt("open_tree", lambda: call(428, -100, b"/", 1))
attempt("unshare of mounts", lambda: call(272, 0x20000))
attempt("unshare of users", lambda: call(272, 0x10000000))
attempt("pivot_root", lambda: call(155, b"/", b"/mnt"))
attempt("bpf", lambda: call(321, 5, ctypes.create_string_buffer(128), 128))
attempt("userfaultfd", lambda: call(323, 0))
attempt("io_uring", lambda: call(425, 1, ctypes.create_string_buffer(128)))
attempt("perf", lambda: call(298, ctypes.create_string_buffer(128), 0, -1, -1, 0))
attempt("module", lambda: call(175, b"", 0, b""))
attempt("kexec", lambda: call(246, 0, 0, 0, 0))
attempt("reboot", lambda: call(169, 0xfee1dead, 672274793, 0, 0))
attempt("swapon", lambda: call(167, b"/etc/passwd", 0))
attempt("acct", lambda: call(163, b"/etc/passwd"))
attempt("syslog", lambda: call(103, 3, ctypes.create_string_buffer(64), 64))
attempt("iopl", lambda: call(172, 3))
attempt("settimeofday", lambda: call(164, ctypes.create_string_buffer(16), 0))
attempt("sethostname", lambda: call(170, b"x", 1))
attempt("keyctl", lambda: call(250, 1, 0))
attempt("open_by_handle_at", lambda: call(304, 3, ctypes.create_string_buffer(128), 0))
attempt("tiocsti", lambda: __import__("fcntl").ioctl(0, 0x5412, b"x"))
attempt("block device", lambda: os.mknod("/b", 0o60600, os.makedev(8, 0)))
attempt("character device", lambda: open(os.mknod("/m", 0o20600, os.makedev(1, 1)) or "/m"))
attempt("hard limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, resource.RLIM_INFINITY)))
attempt("memlock limit", lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 40, 1 << 40)))
attempt("real-time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt("oom score", lambda: put("/proc/self/oom_score_adj", "-1000"))
attempt("PID 1's memory", lambda: open("/proc/1/mem", "r+b"))
attempt("PID 1's memory, read", lambda: open("/proc/1/mem", "rb"))
attempt("PID 1's descriptors", lambda: os.listdir("/proc/1/fd"))
attempt("PID 1's root", lambda: os.listdir("/proc/1/root/"))
attempt("PID 1's program", lambda: open("/proc/1/exe", "rb"))
attempt("PID 1's namespaces", lambda: os.open("/proc/1/ns/mnt", os.O_RDONLY))
attempt("PID 1's environment", lambda: open("/proc/1/environ", "rb").read())
attempt("PID 1's oom score", lambda: put("/proc/1/oom_score_adj", "1000"))
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
buf = ctypes.create_string_buffer(8)
mine, its = iovec(ctypes.addressof(buf), 8), iovec(0x200000010000, 8)
attempt("process_vm_writev", lambda: call(311, 1, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0))
attempt("process_vm_readv", lambda: call(310, 1, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0))
attempt("ptrace of PID 1", lambda: call(101, 16, 1, 0, 0))
attempt("seize of PID 1", lambda: call(101, 0x4206, 1, 0, 0))
attempt("pidfd_getfd", lambda: call(438, os.pidfd_open(1), 100, 0))
attempt("core_pattern", lambda: put("/proc/sys/kernel/core_pattern", "|/x"))
attempt("sysrq", lambda: put("/proc/sysrq-trigger", "h"))
attempt("sysfs", lambda: put("/sys/kernel/mm/transparent_hugepage/enabled", "never"))
attempt("cgroup limit", lambda: [put(d + "/" + f, "1") for d, _, fs in os.walk("/sys/fs/cgroup") for f in fs if f in ("cgroup.procs", "memory.max", "memory.limit_in_bytes", "pids.max", "cgroup.kill", "cgroup.freeze")])
attempt("cgroup made", lambda: os.mkdir("/sys/fs/cgroup/x"))
def kcore(): # /dev/null lies over it, where the kernel has it
    if not open("/proc/kcore", "rb").read(1): raise OSError("empty")
attempt("kcore", kcore)
attempt("kernel memory", lambda: open("/dev/mem", "rb"))
attempt("host file", lambda: open(sys.argv[1]).read())
attempt("host file by ..", lambda: open("/../../../.." + sys.argv[1]).read())
attempt("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\0" + sys.argv[2]))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 1)))
attempt("network", lambda: socket.create_connection(("192.0.2.1", 80), 1))
attempt("host's loopback", lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 1))
nets = os.listdir("/sys/class/net")
if any(n not in ("lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0", "dummy0", "bonding_masters", "teql0", "ifb0", "ifb1", "bond0") for n in nets): print("network devices:", nets)
pids = sorted(int(p) for p in os.listdir("/proc") if p.isdigit())
if pids != [1, os.getpid()]: print("processes:", pids)
try: os.kill(1, 9)
except OSError: pass
print("end")
`

func TestRootInsideCannotEscape(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("sandbox-test-%d", os.Getpid())
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	port := fmt.Sprint(tcp.Addr().(*net.TCPAddr).Port)
	i := boot(t)
	out, code := run(t, i, sandbox.Command{Argv: []string{"python3", "-c", escape, secret, name, port}})
	if out != "end\n" || code != 0 {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if _, code := run(t, i, sandbox.Command{Argv: []string{"true"}}); code != 0 {
		t.Errorf("PID 1 does not serve any more: %d", code)
	}
}

// A command's process shares PID 1's memory until it has executed. Root inside
// looks for a moment in which that memory opens.
func TestMemoryOfExecChildrenStaysClosed(t *testing.T) {
	i := boot(t)
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"python3", "-c", `
import os
print("ready", flush=True)
tries = 0
while not os.path.exists("/stop"):
    for p in os.listdir("/proc"):
        if not p.isdigit(): continue
        try:
            fd = os.open("/proc/%s/mem" % p, os.O_RDWR)
        except OSError:
            tries += 1
            continue
        try:
            # Of a process that has ended no byte is read, without an error.
            if os.pread(fd, 8, 0x200000010000): print("memory of", p, "opens")
        except OSError: pass
        os.close(fd)
print("tries", tries)`}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out := bufio.NewReader(r)
	if line, err := out.ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	for n := range 300 {
		c := sandbox.Command{Argv: []string{"true"}}
		if n%2 == 1 {
			c.User.UID, c.User.GID = 1000, 1000
		}
		if _, code := run(t, i, c); code != 0 {
			t.Fatalf("true: %d", code)
		}
	}
	put(t, i, "/stop", "", 0o600, 0, 0)
	rest, err := io.ReadAll(out)
	<-p.Done()
	if err != nil || !strings.HasPrefix(string(rest), "tries ") {
		t.Errorf("%s %v", rest, err)
	}
}

func TestCommandsAreConfined(t *testing.T) {
	i := boot(t)
	for _, c := range []struct {
		user string
		caps confine.Capabilities
		uid  string
		gids string
	}{
		{"", confine.DefaultCapabilities, "0", "0"},
		{"nobody", 0, "65534", "65534"},
		{"1234:77", 0, "1234", "77"},
	} {
		u, err := i.LookupUser(c.user)
		if err != nil {
			t.Fatal(err)
		}
		out, _ := run(t, i, sandbox.Command{Argv: []string{"cat", "/proc/self/status"}, User: u})
		got := map[string]string{}
		for line := range strings.Lines(out) {
			k, v, _ := strings.Cut(line, ":")
			got[k] = strings.Join(strings.Fields(v), " ")
		}
		set := func(c confine.Capabilities) string { return fmt.Sprintf("%016x", uint64(c)) }
		for k, want := range map[string]string{
			"CapInh": set(0), "CapPrm": set(c.caps), "CapEff": set(c.caps), "CapBnd": set(confine.DefaultCapabilities), "CapAmb": set(0),
			"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1", "TracerPid": "0", "PPid": "1",
			"SigBlk": set(0), "SigIgn": set(0), "SigCgt": set(0), "SigPnd": set(0), "Umask": "0022", "Threads": "1",
			"Uid": strings.Join([]string{c.uid, c.uid, c.uid, c.uid}, " "), "Groups": c.gids,
		} {
			if got[k] != want {
				t.Errorf("%q: %s is %q, want %q", c.user, k, got[k], want)
			}
		}
	}
	if _, err := i.LookupUser("no-such-user"); err == nil {
		t.Error("a user was found who does not exist")
	}
	out, _ := sh(t, i, "cat /proc/1/comm; ls -l /dev/null /dev/fd | head -c 10; ls /proc/self/fd | wc -l; cat /proc/1/status | grep Cap | head -1")
	if !strings.HasPrefix(out, "init\n") {
		t.Errorf("PID 1 is %q", out)
	}
}

// Code inside can make these files whatever it likes; root can come in all the
// same, and no file is followed out or waited for.
func TestSpoiledAccounts(t *testing.T) {
	i := boot(t)
	for _, spoil := range []string{
		"head -c 2000000 /dev/zero >/etc/passwd",
		"ln -s passwd /etc/passwd",
		"ln -s /proc/1/mem /etc/passwd",
		"ln -s /dev/zero /etc/passwd",
		"mkfifo /etc/passwd",
		"mkdir /etc/passwd",
		"rm -rf /etc/group; mkfifo /etc/group",
	} {
		if out, code := sh(t, i, "rm -rf /etc/passwd; "+spoil); code != 0 {
			t.Fatalf("%s: %s", spoil, out)
		}
		for _, spec := range []string{"", "0", "0:0", "12:34"} {
			if u, err := i.LookupUser(spec); err != nil {
				t.Errorf("%s: user %q: %v", spoil, spec, err)
			} else if want := map[bool]uint32{true: 12}[spec == "12:34"]; u.UID != want {
				t.Errorf("%s: user %q is %d", spoil, spec, u.UID)
			}
		}
		for _, spec := range []string{"alice", "0:wheel"} {
			if _, err := i.LookupUser(spec); err == nil || fault.Is(err, fault.Internal) {
				t.Errorf("%s: user %q: %v", spoil, spec, err)
			}
		}
	}
}

func TestSetuidProgramsByPolicy(t *testing.T) {
	setuid, err := confine.New(confine.Policy{Setuid: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		walls *confine.Walls
		want  string
	}{{home(t).walls, "1000 1\n"}, {setuid, "0 0\n"}} {
		i := boot(t, func(s *sandbox.Spec) { s.Walls = c.walls })
		sh(t, i, "cp /usr/bin/id /id; chmod 4755 /id")
		out, _ := run(t, i, sandbox.Command{
			Argv: []string{"sh", "-c", "echo $(/id -u) $(sed -n 's/NoNewPrivs:.//p' /proc/self/status)"},
			User: sandbox.User{User: confine.User{UID: 1000, GID: 1000}},
		})
		if out != c.want {
			t.Errorf("%q, want %q", out, c.want)
		}
	}
}

func TestNamespacesAreTheirOwn(t *testing.T) {
	a, b := boot(t), boot(t)
	for _, k := range []namespace.Kind{namespace.User, namespace.PID, namespace.Mount, namespace.Network, namespace.IPC, namespace.UTS, namespace.Cgroup, namespace.TimeForChildren} {
		var ids [3]uint64
		for n, pid := range []int{os.Getpid(), a.PID(), b.PID()} {
			id, err := namespace.ID(pid, k)
			if err != nil {
				t.Fatal(err)
			}
			ids[n] = id
		}
		if ids[0] == ids[1] || ids[0] == ids[2] || ids[1] == ids[2] {
			t.Errorf("%s: host %d, incarnations %d and %d", k, ids[0], ids[1], ids[2])
		}
		fd, err := a.Namespace(k)
		if err != nil {
			t.Error(err)
			continue
		}
		unix.Close(fd)
	}
	root, err := a.Root()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(root)
}
