// Package testdaemon runs the real daemon for tests of what speaks to one: the
// program is built, served on a state directory of the test's own, given a
// template called "test", and stopped at the test's end, when nothing of it may
// be left.
package testdaemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testrootfs"
)

// Module is the path of this module.
const Module = "github.com/sandtree/sandtree"

// Daemon is a daemon that runs.
type Daemon struct {
	State, Socket string
	// Binary is the program.
	Binary string

	t      testing.TB
	env    []string
	output lockedBuffer

	mu  sync.Mutex
	cmd *exec.Cmd // another one after a restart
}

// Build builds programs of this module, by their directories in it, into a
// directory.
func Build(t testing.TB, into string, dirs ...string) {
	t.Helper()
	args := []string{"build", "-o", into + string(filepath.Separator)}
	for _, d := range dirs {
		args = append(args, Module+"/"+d)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %v: %v\n%s", dirs, err, out)
	}
}

// Start starts a daemon, which needs root, and stops it at the test's end. env is
// added to its environment.
func Start(t testing.TB, env ...string) *Daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the daemon needs root")
	}
	root := testrootfs.Path(t)
	dir, err := os.MkdirTemp("", "sandtree-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	Build(t, dir, "cmd/sandtree")
	d := &Daemon{t: t, env: env, Binary: filepath.Join(dir, "sandtree"), State: filepath.Join(dir, "state"), Socket: filepath.Join(dir, "api.sock")}
	if err := d.serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	for _, args := range [][]string{{"image", "import", "test", root}, {"template", "create", "test", "--image", "test"}} {
		if out, err := d.Command(args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return d
}

// startWithin bounds the daemon's start.
const startWithin = time.Minute

func (d *Daemon) serve() error {
	cmd := exec.Command(d.Binary, "serve", "--state", d.State, "--socket", d.Socket)
	cmd.Env = append(os.Environ(), d.env...)
	cmd.Stdout, cmd.Stderr = &d.output, &d.output
	if err := cmd.Start(); err != nil {
		return err
	}
	d.mu.Lock()
	d.cmd = cmd
	d.mu.Unlock()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c, err := client.Dial(d.Socket)
		if err == nil {
			_ = c.Close()
			return nil
		}
		if time.Since(begin) > startWithin {
			_ = cmd.Process.Kill()
			return fmt.Errorf("the daemon does not answer: %w", err)
		}
	}
}

// Restart ends the daemon with a signal, SIGKILL as a crash does, and starts
// another on the same state directory.
func (d *Daemon) Restart(signal unix.Signal) error {
	d.mu.Lock()
	cmd := d.cmd
	d.mu.Unlock()
	if err := cmd.Process.Signal(signal); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil && signal != unix.SIGKILL {
		return fmt.Errorf("the daemon ended with: %w", err)
	}
	return d.serve()
}

// Command is a command of the program for this daemon.
func (d *Daemon) Command(args ...string) *exec.Cmd {
	return exec.Command(d.Binary, append([]string{"--state", d.State, "--socket", d.Socket}, args...)...)
}

// Dial connects to the daemon until the test's end.
func (d *Daemon) Dial() *client.Client {
	d.t.Helper()
	c, err := client.Dial(d.Socket)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// HostPID is the daemon's root part.
func (d *Daemon) HostPID() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd.Process.Pid
}

// Parts are the processes of the daemon that run a command: "node" or
// "supervisor".
func (d *Daemon) Parts(command string) []int {
	var pids []int
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil || parent(pid) != d.HostPID() {
			continue
		}
		argv, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if words := strings.Split(string(argv), "\x00"); len(words) > 1 && words[1] == command {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parent is a process's parent, or 0; see proc_pid_stat(5).
func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	var state string
	var ppid int
	_, _ = fmt.Sscan(rest, &state, &ppid)
	return ppid
}

// stop ends the daemon in order, shows its log if the test failed, and fails
// it if something was left.
func (d *Daemon) stop() {
	_ = d.cmd.Process.Signal(unix.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- d.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			d.t.Errorf("the daemon ended with: %v", err)
		}
	case <-time.After(2 * time.Minute):
		_ = d.cmd.Process.Kill()
		d.t.Error("the daemon does not end")
	}
	if err := leftBehind(d.State, d.Binary); err != nil {
		d.t.Error(err)
	}
	if d.t.Failed() {
		d.t.Logf("the daemon's log:\n%s", d.output.String())
	}
}

// leftBehind looks for mounts and loop devices that name a state directory, and for
// processes of a program.
func leftBehind(state, binary string) error {
	var errs []error
	// By what they execute: reading the command line of somebody else's process may
	// have to wait for it.
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range all {
		if path, err := os.Readlink(exe); err == nil && path == binary {
			errs = append(errs, fmt.Errorf("a process was left: %s", exe))
		}
	}
	for pattern, what := range map[string]string{
		"/proc/self/mountinfo":               "a mount",
		"/sys/block/loop*/loop/backing_file": "a loop device",
	} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if content, err := os.ReadFile(f); err == nil && strings.Contains(string(content), state) {
				errs = append(errs, fmt.Errorf("%s was left: %s", what, f))
			}
		}
	}
	return errors.Join(errs...)
}

// lockedBuffer collects what the daemon prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
