package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
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
		if p := os.Getenv("SANDTREE_TEST_PROGRAM"); p != "" { // where there is no go
			if err := os.Symlink(p, binary); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return run(m)
		}
		build := exec.Command("go", "build", "-o", binary, "github.com/sandtree/sandtree/cmd/sandtree")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
			return 1
		}
		return run(m)
	}())
}

func run(m *testing.M) int {
	code := m.Run()
	if err := endShared(); err != nil {
		fmt.Fprintln(os.Stderr, "the tests' daemon:", err)
		code = 1
	}
	return code
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
	e.Setenv("SANDTREE_TEST_ROOTFS", os.Getenv("SANDTREE_TEST_ROOTFS"))
	e.Defer(func() {
		for _, own := range []string{"state", "own", "other"} { // of the script alone
			if err := stopDaemon(filepath.Join(e.WorkDir, own)); err != nil {
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
	"familyof":    familyOf,
	"killpart":    killPart,
	"forge":       forge,
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

func TestDaemonScripts(t *testing.T) {
	state := daemon(t)
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/daemon",
		Setup: func(e *testscript.Env) error { return setup(e, state) },
		Cmds:  commands,
	})
}
