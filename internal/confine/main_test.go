package confine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/tracee"
)

// The test binary runs again as a confined program, which tells what it can
// do. It is told by this variable.
const (
	partEnv = "SANDTREE_CONFINE_TEST_PART"
	initEnv = "SANDTREE_CONFINE_TEST_INIT" // PID 1, in the host's numbers
)

func TestMain(m *testing.M) {
	switch os.Getenv(partEnv) {
	case "":
		os.Exit(m.Run())
	case "wait":
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	if err := json.NewEncoder(os.Stdout).Encode(look()); err != nil {
		os.Exit(1)
	}
}

// body is a PID 1 in namespaces of its own, without mounts of its own.
type body struct {
	seed *tracee.Server
	init *tracee.Init
	ends chan end
	ids  confine.IDMap
}

type end struct {
	pid    int
	status unix.WaitStatus
}

func boot(t *testing.T) *body {
	t.Helper()
	roottest.Need(t, "this test")
	p, err := tracee.NewProgram()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	seed, err := p.Spawn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(seed.Kill)
	if err := confine.Prepare(seed.PID()); err != nil {
		t.Fatal(err)
	}
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := tracee.NewBatch()
	b.ReceiveFDs(1)
	r, _ := b.Fork(tracee.CloneArgs{
		Flags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
		ExitSignal: uint64(unix.SIGCHLD),
	}, tracee.EndServe, func(c *tracee.Batch) {
		c.Call(unix.SYS_DUP3, 0, tracee.ControlFD, unix.O_CLOEXEC)
		c.Call(unix.SYS_CLOSE, 0)
		c.ReportExits()
	})
	b.Call(unix.SYS_CLOSE, 0)
	err = seed.Do(b, sp[1])
	unix.Close(sp[1])
	if err != nil {
		t.Fatal(err)
	}
	s := tracee.NewServer(b.Value(r), sp[0])
	ids, err := confine.FamilyIDs(7)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", s.PID(), f), []byte(ids.String()), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Hello(); err != nil {
		t.Fatal(err)
	}
	o := &body{seed: seed, ends: make(chan end, 16), ids: ids}
	if o.init, err = tracee.NewInit(s, func(pid int, st unix.WaitStatus) { o.ends <- end{pid, st} }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = o.init.Close()
		w := tracee.NewBatch()
		w.Try(unix.SYS_WAIT4, s.PID(), nil, unix.WALL, nil)
		if err := seed.Do(w); err != nil {
			t.Error(err)
		}
	})
	b = tracee.NewBatch()
	b.Call(unix.SYS_SETSID)
	b.Call(unix.SYS_SETGROUPS, 0, nil)
	b.Call(unix.SYS_SETRESGID, 0, 0, 0)
	b.Call(unix.SYS_SETRESUID, 0, 0, 0)
	confine.Keyring(b)
	confine.Undumpable(b)
	if err := o.init.Do(b); err != nil {
		t.Fatal(err)
	}
	return o
}

// program is this test's own executable in memory, which every user may run.
func program(t *testing.T) int {
	t.Helper()
	fd, err := unix.MemfdCreate("confined", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "confined")
	t.Cleanup(func() { f.Close() })
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	if _, err := io.Copy(f, exe); err != nil {
		t.Fatal(err)
	}
	return fd
}

// exec runs this binary in the body, confined, and returns what it told.
func (o *body) exec(t *testing.T, w *confine.Walls, u confine.User) view {
	t.Helper()
	pid, out := o.start(t, w, u, "look", devNull(t))
	defer out.Close()
	var v view
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if e := <-o.ends; e.pid != pid || e.status.ExitStatus() != 0 {
		t.Errorf("ended %+v", e)
	}
	return v
}

// start starts this binary in the body, confined. The pid is the one inside.
func (o *body) start(t *testing.T, w *confine.Walls, u confine.User, part string, stdin int) (pid int, out *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	b := tracee.NewBatch()
	r, c := b.Fork(tracee.CloneArgs{
		Flags:      unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND,
		ExitSignal: uint64(unix.SIGCHLD),
	}, tracee.EndExit, func(c *tracee.Batch) {
		c.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0)
		c.ReceiveFDs(4)
		c.Call(unix.SYS_CLOSE_RANGE, 3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
		c.Call(unix.SYS_SETSID)
		c.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, c.PutWords(0), nil, 8)
		w.Exec(c, u)
		env := []string{partEnv + "=" + part, fmt.Sprintf("%s=%d", initEnv, o.init.PID())}
		c.Call(unix.SYS_EXECVEAT, 3, "", []string{"confined"}, env, unix.AT_EMPTY_PATH)
	})
	t.Logf("%d calls", c.Len())
	err := o.init.Do(b, stdin, p[1], 2, program(t))
	unix.Close(p[1])
	out = os.NewFile(uintptr(p[0]), "out")
	if err != nil {
		out.Close()
		t.Fatal(err)
	}
	return b.Value(r), out
}

func devNull(t *testing.T) int {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return int(f.Fd())
}

// view is what a confined program found.
type view struct {
	Status map[string]string
	Limits string
	Tried  map[string]string // call: the name of its error number
}

func look() view {
	v := view{Status: map[string]string{}, Tried: map[string]string{}}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		v.Status["error"] = err.Error()
	}
	for line := range strings.Lines(string(text)) {
		k, x, _ := strings.Cut(line, ":")
		v.Status[k] = strings.Join(strings.Fields(x), " ")
	}
	limits, _ := os.ReadFile("/proc/self/limits")
	v.Limits = string(limits)
	try := func(name string, nr uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		_, _, e := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		v.Tried[name] = "ok"
		if e != 0 {
			v.Tried[name] = unix.ErrnoName(e)
		}
	}
	try("clone3", unix.SYS_CLONE3)
	try("clone user", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
	try("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	try("mount", unix.SYS_MOUNT)
	try("keyctl", unix.SYS_KEYCTL)
	try("bpf", unix.SYS_BPF)
	try("io_uring", unix.SYS_IO_URING_SETUP, 1)
	try("aio", unix.SYS_IO_SETUP, 1)
	try("userfaultfd", unix.SYS_USERFAULTFD, 1)
	try("packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)
	try("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)
	try("mptcp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	try("tcp", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM)
	try("sti", unix.SYS_IOCTL, 0, unix.TIOCSTI)
	try("sti hidden", unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI)
	try("tcgets", unix.SYS_IOCTL, 0, unix.TCGETS)
	try("x32", 1<<30|unix.SYS_GETPID)
	try("newer", 999)
	if err := os.WriteFile("/dev/shm/sandtree-confine-test", nil, 0o600); err != nil {
		v.Tried["write"] = errno(err)
	} else {
		v.Tried["write"] = "ok"
		_ = os.Remove("/dev/shm/sandtree-confine-test")
	}
	v.Tried["raise limit"] = "ok"
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		v.Tried["raise limit"] = errno(err)
	}
	f, err := os.OpenFile("/proc/"+os.Getenv(initEnv)+"/mem", os.O_RDWR, 0)
	v.Tried["PID 1"] = errno(err)
	if err == nil {
		f.Close()
	}
	return v
}

func errno(err error) string {
	var e unix.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	return fmt.Sprint(err)
}
