package descriptor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/tracee"
)

// body is a mount namespace with a root of its own, as an incarnation has:
// the machine's files, an empty /tmp, and a /dev and devpts of its own. A
// process that sleeps holds it.
type body struct {
	holder *exec.Cmd
	root   int
	// between is what a restore does between Install and Complete, such as
	// controlling terminals; leads is the terminal of each process, if any.
	between func(o *Opened, all []*restored)
	leads   []int
	target  Target         // what the test adds to it
	before  func(pid int)  // is called for each stub
	pids    []int          // inside, of the captured processes
	masters map[string]int // of restored sessions, by id
}

const bodyScript = `set -e
mount --make-rprivate /
mount --bind / "$1"
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount -t tmpfs tmpfs "$1/tmp"
mount -t tmpfs dev "$1/dev"
mkdir "$1/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$1/dev/pts"
cd "$1/dev"
mknod -m 666 null c 1 3; mknod -m 666 zero c 1 5; mknod -m 666 full c 1 7
mknod -m 666 random c 1 8; mknod -m 666 urandom c 1 9; mknod -m 666 tty c 5 0
ln -s pts/ptmx ptmx
cd "$1"
pivot_root . mnt
umount -l /mnt
echo ready
exec sleep infinity`

func newBody(t testing.TB) *body {
	t.Helper()
	roottest.Need(t, "mounts")
	c := exec.Command("unshare", "-mn", "sh", "-c", bodyScript, "sh", t.TempDir())
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	expectLine(t, bufio.NewReader(out), "ready")
	loopback(t, c.Process.Pid)
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", c.Process.Pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(root) })
	return &body{holder: c, root: root, masters: map[string]int{}}
}

// path is a path of the body as this process reaches it.
func (b *body) path(p string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.holder.Process.Pid), p)
}

func expectLine(t testing.TB, r *bufio.Reader, want string) {
	t.Helper()
	if s, err := r.ReadString('\n'); err != nil || strings.TrimSpace(s) != want {
		t.Fatalf("line %q (%v), want %q", s, err, want)
	}
}

// target is a program in the body. Its three standard streams are a session's
// pipes.
type target struct {
	*exec.Cmd
	b      *body
	stdin  *os.File
	stdout *bufio.Reader
	out    [2]*os.File // outer ends of stdout and stderr
	inodes [3]unix.Stat_t
	pidfd  int
	reads  *acceptqueue.Reader // what was not accepted, or nil
}

func (b *body) start(t testing.TB, argv ...string) *target {
	t.Helper()
	p := &target{b: b}
	p.Cmd = exec.Command("nsenter", append([]string{"-t", strconv.Itoa(b.holder.Process.Pid), "-m", "-n", "--"}, argv...)...)
	var inner [3]*os.File
	for i := range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			p.stdin, inner[0] = w, r
		} else {
			p.out[i-1], inner[i] = r, w
		}
		if err := unix.Fstat(int(r.Fd()), &p.inodes[i]); err != nil {
			t.Fatal(err)
		}
	}
	p.Stdin, p.Stdout, p.Stderr = inner[0], inner[1], inner[2]
	p.stdout = bufio.NewReader(p.out[0])
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	for _, f := range inner {
		_ = f.Close()
	}
	pidfd, err := unix.PidfdOpen(p.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.pidfd = pidfd
	return p
}

// python starts a script and waits until it has said "ready".
func (b *body) python(t testing.TB, script string) *target {
	t.Helper()
	// What this test was started with is not the target's.
	p := b.start(t, "python3", "-c", "import os; os.closerange(3, 1024)\n"+script)
	if s, err := p.stdout.ReadString('\n'); err != nil || s != "ready\n" {
		text, _ := io.ReadAll(p.out[1])
		t.Fatalf("the target said %q (%v): %s", s, err, text)
	}
	return p
}

func (p *target) end() {
	if p.pidfd >= 0 {
		_ = p.Process.Kill()
		_ = p.Wait()
		_ = unix.Close(p.pidfd)
		_ = p.stdin.Close()
		_ = p.out[0].Close()
		_ = p.out[1].Close()
		p.pidfd = -1
	}
}

func (p *target) env() Env {
	return Env{Root: p.b.root, Unaccepted: func() *acceptqueue.Reader { return p.reads }, Session: func(dev, ino uint64) (Stream, bool) {
		for i, st := range p.inodes {
			if st.Dev == dev && st.Ino == ino {
				s := Stream{SessionID: "se-test", Number: i, Outer: -1}
				if i > 0 {
					s.Outer = int(p.out[i-1].Fd())
				}
				return s, true
			}
		}
		return Stream{}, false
	}}
}

func (p *target) process() Process {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.Process.Pid))
	g, _ := unix.Getpgid(p.Process.Pid)
	return Process{
		HostPID: p.Process.Pid, PID: p.Process.Pid, PIDFD: p.pidfd,
		Comm: strings.TrimSpace(string(comm)), Group: g, Terminal: -1,
	}
}

// stopped runs f on a locked thread while all threads of the given processes
// are stopped.
func stopped(t testing.TB, pids []int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var tids []int
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range tasks {
			tid, _ := strconv.Atoi(e.Name())
			tids = append(tids, tid)
		}
	}
	for _, tid := range tids {
		if err := ptrace.Seize(tid, tracee.OptionsLive); err != nil {
			t.Fatalf("seize %d: %v", tid, err)
		}
		if err := ptrace.Interrupt(tid); err != nil {
			t.Fatal(err)
		}
		if st, err := ptrace.Wait(tid); err != nil || !st.Stopped() {
			t.Fatalf("wait for %d: %v %v", tid, st, err)
		}
	}
	defer func() {
		for _, tid := range tids {
			if err := ptrace.Detach(tid, 0); err != nil {
				t.Fatal(err)
			}
		}
	}()
	f()
}

// capture stops one target and captures it.
func (p *target) capture(t testing.TB) (*Result, error) {
	t.Helper()
	var r *Result
	var err error
	var c Capturer
	if _, err := self(); err != nil { // stays open for good
		t.Fatal(err)
	}
	before := openFDs(t)
	stopped(t, []int{p.Process.Pid}, func() { r, err = c.Capture([]Process{p.process()}, p.env()) })
	c.Close()
	blobs := closeBlobs(t, r)
	if after := openFDs(t); after != before+blobs {
		t.Errorf("capture left %d descriptors open", after-before-blobs)
	}
	return r, err
}

// closeBlobs closes the content that a capture holds, with the test: one that
// the garbage collector closes upsets another test's count of descriptors.
func closeBlobs(t testing.TB, r *Result) (blobs int) {
	t.Helper()
	if r == nil {
		return 0
	}
	for _, f := range r.Files {
		if f.Blob != nil {
			blobs++
			t.Cleanup(func() { _ = f.Blob.Close() })
		}
	}
	return blobs
}

func (p *target) mustCapture(t testing.TB) *Result {
	t.Helper()
	r, err := p.capture(t)
	// What is of the moment, as data on its way, is tried again, as a checkpoint does.
	for pause := time.Millisecond; fault.Passes(err) && pause < time.Second; pause *= 2 {
		time.Sleep(pause)
		r, err = p.capture(t)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func openFDs(t testing.TB) int {
	t.Helper()
	l, err := List(os.Getpid(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// pythonWithChild starts a script that forks and says "ready" and the number of
// the child.
func (b *body) pythonWithChild(t testing.TB, script string) (p *target, kid, kidFD int) {
	t.Helper()
	p = b.start(t, "python3", "-c", "import os; os.closerange(3, 1024)\n"+script)
	line, err := p.stdout.ReadString('\n')
	if err == nil {
		kid, err = strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "ready ")))
	}
	if err != nil {
		text, _ := io.ReadAll(p.out[1])
		t.Fatalf("the target said %q (%v): %s", line, err, text)
	}
	t.Cleanup(func() { _ = unix.Kill(kid, unix.SIGKILL) })
	if kidFD, err = unix.PidfdOpen(kid, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(kidFD) })
	return p, kid, kidFD
}

// loopback brings the loopback device of a process's network namespace up.
func loopback(t testing.TB, pid int) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		done <- func() error {
			ns, err := namespace.Open(pid, namespace.Network)
			if err != nil {
				return err
			}
			defer unix.Close(ns)
			if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
				return err
			}
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			ifr, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
			return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr)
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
