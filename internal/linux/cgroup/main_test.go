package cgroup_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// The test binary runs again inside groups, with its part in this variable.
const partEnv = "SANDTREE_CGROUP_TEST_PART"

func TestMain(m *testing.M) {
	switch part := os.Getenv(partEnv); part {
	case "":
		os.Exit(m.Run())
	case "sleep":
		fmt.Println("ready")
		time.Sleep(time.Minute)
	case "spin":
		fmt.Println("ready")
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		}
	case "hog":
		var go1 string
		fmt.Println("ready")
		fmt.Scanln(&go1)
		var keep [][]byte
		for range 512 { // 2 GiB, far above every limit of the tests
			b := make([]byte, 4<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			keep = append(keep, b)
		}
		runtime.KeepAlive(keep)
	case "fork":
		n := 0
		for range 200 {
			c := exec.Command("/bin/sleep", "60")
			if c.Start() != nil {
				break
			}
			n++
		}
		fmt.Println("ready", n)
		time.Sleep(time.Minute)
	case "open":
		var out strings.Builder
		for _, path := range os.Args[1:] {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK, 0)
			_ = unix.Close(fd)
			fmt.Fprintln(&out, path, err)
		}
		fmt.Fprintln(&out, "whiteout", unix.Mknod("w", unix.S_IFCHR, 0)) // overlayfs makes these
		fmt.Fprintln(&out, "disk", unix.Mknod("d", unix.S_IFBLK|0o600, 7<<8))
		fmt.Print(out.String())
	case "fifo":
		// Real-time threads are bounded: the kernel ends us after 0.2 s.
		lim := unix.Rlimit{Cur: 200_000, Max: 200_000}
		if err := unix.Setrlimit(unix.RLIMIT_RTTIME, &lim); err != nil {
			fmt.Println("rlimit", err)
		}
		runtime.LockOSThread()
		p := struct{ prio int32 }{1}
		_, _, e := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, ptr(&p.prio))
		fmt.Println(int(e))
	default:
		fmt.Println("no part", part)
	}
}

// setup makes a parent of its own for a test and checks that it leaves none.
func setup(t *testing.T) *cgroup.Parent {
	t.Helper()
	roottest.Need(t, "this test")
	l, err := cgroup.Detect()
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.OpenParent(fmt.Sprintf("test-%d-%s", os.Getpid(), strings.ToLower(strings.Map(letters, t.Name()))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := p.Remove(ctx); err != nil {
			t.Error(err)
		}
		if names, err := p.Names(); err != nil || len(names) > 0 {
			t.Errorf("left: %v, %v", names, err)
		}
	})
	return p
}

func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return -1
}

func newGroup(t *testing.T, p *cgroup.Parent, id string, l cgroup.Limits) *cgroup.Group {
	t.Helper()
	g, err := p.NewGroup(id, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// start runs a part of this binary in a group and waits for its "ready".
func start(t *testing.T, g *cgroup.Group, part string, args ...string) (*exec.Cmd, *os.File, string) {
	t.Helper()
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), partEnv+"="+part)
	c.Dir = t.TempDir()
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.FD()}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdin, c.Stdout, c.Stderr = inR, outW, os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		inW.Close()
		outR.Close()
	})
	if g.NeedsAdd() {
		if err := g.Add(c.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 4096)
	n, err := outR.Read(buf)
	if err != nil {
		t.Fatalf("part %s: %v", part, err)
	}
	return c, inW, string(buf[:n])
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
