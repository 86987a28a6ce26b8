package child_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/host/child"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// A reaper waits for all children of its process, so each test runs one in a
// process of its own: this program with a role.
var roles = map[string]func(args []string) error{
	"status":   roleStatus,
	"orphans":  roleOrphans,
	"owner":    roleOwner,
	"identity": roleIdentity,
	"print":    rolePrint,
	"confined": roleConfined,
	"deeds":    roleDeeds,
	"exit":     func([]string) error { os.Exit(7); return nil },
	"wait":     func([]string) error { select {} },
}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "role" {
		if err := roles[os.Args[2]](os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func spec(role string, args ...string) child.Spec {
	return child.Spec{Path: "/proc/self/exe", Args: append([]string{"test", "role", role}, args...), Env: os.Environ()}
}

// run runs a role and returns what it printed.
func run(t *testing.T, role string) string {
	t.Helper()
	roottest.Need(t, "this test")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd := exec.Command(exe, "role", role)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	return string(out)
}

func roleStatus([]string) error {
	r, err := child.NewReaper()
	if err != nil {
		return err
	}
	defer r.Close()
	ends, err := r.Start(spec("exit"))
	if err != nil {
		return err
	}
	waits, err := r.Start(spec("wait"))
	if err != nil {
		return err
	}
	fmt.Println(ends.Reason())
	waits.Signal(syscall.SIGKILL)
	fmt.Println(waits.Reason())
	waits.Signal(syscall.SIGKILL) // reaches nobody
	if _, err := r.Start(child.Spec{Path: "/no/such/program", Args: []string{"x"}}); err != nil {
		fmt.Println(err)
	}
	return nil
}

func TestStatus(t *testing.T) {
	want := "exited with status 7\nkilled by SIGKILL\nstart x: no such file or directory\n"
	if got := run(t, "status"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// roleOrphans starts a shell that leaves a grandchild, and waits until this
// process has no child any more.
func roleOrphans([]string) error {
	r, err := child.NewReaper()
	if err != nil {
		return err
	}
	defer r.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	c, err := r.Start(child.Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", "(read x <&3; exit 3) & echo $!"},
		Files: []*os.File{pr},
	})
	if err != nil {
		return err
	}
	<-c.Done()
	pw.Close()
	for {
		// ECHILD comes when all are reaped.
		if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err == unix.ECHILD {
			return nil
		}
	}
}

func TestOrphansAreReaped(t *testing.T) { run(t, "orphans") }

// roleOwner starts a child and prints its number; it never ends by itself.
func roleOwner([]string) error {
	r, err := child.NewReaper()
	if err != nil {
		return err
	}
	c, err := r.Start(spec("wait"))
	if err != nil {
		return err
	}
	fmt.Println(c.PID())
	select {}
}

func TestChildDiesWithItsHost(t *testing.T) {
	roottest.Need(t, "this test")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "role", "owner")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	cmd.Process.Kill()
	cmd.Wait()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(10*time.Second/time.Millisecond))
	if err != nil || n != 1 {
		t.Errorf("the child lives on: %d, %v", n, err)
	}
}

// rolePrint prints what the test looks at, to descriptor 3.
func rolePrint([]string) error {
	out := os.NewFile(3, "out")
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		switch key, _, _ := strings.Cut(line, ":"); key {
		case "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs":
			fmt.Fprint(out, strings.Join(strings.Fields(line), " "), "\n")
		}
	}
	sid, err := unix.Getsid(0)
	fmt.Fprintln(out, "leader", sid == os.Getpid(), err)
	return nil
}

func roleIdentity([]string) error {
	r, err := child.NewReaper()
	if err != nil {
		return err
	}
	defer r.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	s := spec("print")
	s.Files, s.Unprivileged, s.ID = []*os.File{pw}, true, 0x1fffffff
	if _, err := r.Start(s); err != nil {
		return err
	}
	pw.Close()
	_, err = io.Copy(os.Stdout, pr)
	return err
}

func TestUnprivilegedChildHasNothing(t *testing.T) {
	want := `Uid: 536870911 536870911 536870911 536870911
Gid: 536870911 536870911 536870911 536870911
Groups:
CapInh: 0000000000000000
CapPrm: 0000000000000000
CapEff: 0000000000000000
CapBnd: 0000000000000000
CapAmb: 0000000000000000
NoNewPrivs: 1
leader true <nil>
`
	if got := run(t, "identity"); got != want {
		t.Errorf("got %s", got)
	}
}
