package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/testrootfs"
)

// The scripts in testdata/script run the real program; those in
// testdata/daemon against a daemon that they share, with a template called
// test. Names that a script gives in it must be its own.

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "sandtree-cli-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "sandtree")
		build := exec.Command("go", "build", "-o", binary, "github.com/sandtree/sandtree/cmd/sandtree")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: func(e *testscript.Env) error { return setup(e, filepath.Join(e.WorkDir, "state")) },
		Cmds:  commands,
	})
}

// setup puts the program into the PATH and chooses the daemon.
func setup(e *testscript.Env, state string) error {
	e.Setenv("PATH", filepath.Dir(binary)+string(filepath.ListSeparator)+e.Getenv("PATH"))
	e.Setenv("SANDTREE_STATE", state)
	e.Defer(func() {
		if state == filepath.Join(e.WorkDir, "state") {
			if err := stopDaemon(state); err != nil {
				e.T().Log(err)
				e.T().FailNow()
			}
		}
	})
	return nil
}

var commands = map[string]func(*testscript.TestScript, bool, []string){
	"exitcode":    exitCode,
	"jsonfield":   jsonField,
	"stop-daemon": func(ts *testscript.TestScript, _ bool, _ []string) { ts.Check(stopDaemon(ts.Getenv("SANDTREE_STATE"))) },
}

// exitCode runs a command and compares its exit code: exitcode N COMMAND….
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exitcode N COMMAND…")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// jsonField sets a variable to a field of the last command's output, which is
// an object or an array: jsonfield VAR PATH, where PATH is like 0.id.
func jsonField(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: jsonfield VAR PATH")
	}
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	for key := range strings.SplitSeq(args[1], ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(x) {
				ts.Fatalf("no element %s of %d", key, len(x))
			}
			v = x[i]
		default:
			ts.Fatalf("no field %s", key)
		}
	}
	if v == nil {
		ts.Fatalf("no field %s", args[1])
	}
	ts.Setenv(args[0], fmt.Sprint(v))
}

// stopDaemon ends the daemon of a state directory, if one runs, and waits for
// it.
func stopDaemon(state string) error {
	b, err := os.ReadFile(filepath.Join(state, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var holder struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(b, &holder); err != nil || holder.PID <= 1 {
		return nil // it ended in an orderly way and left no name
	}
	pidfd, err := unix.PidfdOpen(holder.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pidfd) }()
	// The pid may be somebody else's by now.
	if cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", holder.PID)); err != nil || !strings.Contains(string(cmd), "serve") {
		return nil
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0); err != nil {
		return err
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(time.Minute/time.Millisecond)) //nolint:gosec // a descriptor
	if err == nil && n == 0 {
		err = fmt.Errorf("the daemon %d does not end", holder.PID)
	}
	return err
}

// shared is the daemon of the scripts in testdata/daemon.
var shared = sync.OnceValues(func() (string, error) {
	state, err := os.MkdirTemp(filepath.Dir(binary), "state-")
	if err != nil {
		return "", err
	}
	return state, nil
})

func TestDaemonScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the daemon needs root")
	}
	state, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stopDaemon(state); err != nil {
			t.Error(err)
		}
		leftBehind(t, state)
	})
	for _, args := range [][]string{
		{"image", "import", "test", testrootfs.Path(t)},
		{"template", "create", "test", "--image", "test"},
	} {
		cmd := exec.Command(binary, append([]string{"--state", state}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			log, _ := os.ReadFile(filepath.Join(state, "serve.log"))
			t.Fatalf("%v: %v\n%s\n%s", args, err, out, log)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/daemon",
		Setup: func(e *testscript.Env) error { return setup(e, state) },
		Cmds:  commands,
	})
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(state, "serve.log"))
		t.Logf("the daemon's log:\n%s", log)
	}
}

// leftBehind fails the test for what a stopped daemon left: processes with its
// state directory in their command line or open, loop devices, mounts.
func leftBehind(t *testing.T, state string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), state) {
		t.Errorf("mounts were left:\n%s", mounts)
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if file, err := os.ReadFile(l); err == nil && strings.Contains(string(file), state) {
			t.Errorf("loop device was left: %s of %s", l, file)
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, p := range procs {
		if line, err := os.ReadFile(p); err == nil && strings.Contains(string(line), state) {
			t.Errorf("process was left: %s %q", p, line)
		}
	}
}
