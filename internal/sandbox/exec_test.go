package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// start runs a command with pipes for output and nothing for input.
func start(t testing.TB, i *sandbox.Incarnation, c sandbox.Command) (*sandbox.Process, *os.File, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	p, err := i.Exec(c, [3]int{int(in.Fd()), int(w.Fd()), int(w.Fd())})
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	return p, r, nil
}

// run runs a command to its end and returns its output and exit code.
func run(t testing.TB, i *sandbox.Incarnation, c sandbox.Command) (string, int) {
	t.Helper()
	p, r, err := start(t, i, c)
	if err != nil {
		t.Fatalf("exec %q: %v", c.Argv, err)
	}
	defer r.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	return string(out), p.ExitCode()
}

func sh(t testing.TB, i *sandbox.Incarnation, script string) (string, int) {
	t.Helper()
	return run(t, i, sandbox.Command{Argv: []string{"sh", "-c", script}})
}

func TestExecTrueAndStatuses(t *testing.T) {
	i := boot(t)
	if out, code := run(t, i, sandbox.Command{Argv: []string{"true"}}); out != "" || code != 0 {
		t.Errorf("true: %q, %d", out, code)
	}
	if _, code := sh(t, i, "exit 42"); code != 42 {
		t.Errorf("exit 42: %d", code)
	}
	if _, code := sh(t, i, "kill -9 $$"); code != 137 {
		t.Errorf("kill -9: %d", code)
	}
	if out, _ := sh(t, i, "echo $0 $# $$; pwd; hostname; umask; id"); !strings.Contains(out, "uid=0(root)") || !strings.Contains(out, "box\n0022\n") {
		t.Errorf("sh says %q", out)
	}
}

func TestExecFailuresAreTold(t *testing.T) {
	i := boot(t)
	sh(t, i, "printf '#!/no/such/interpreter\n' >/bad; chmod 755 /bad; printf x >/plain; printf x >/text; chmod 755 /text")
	for _, c := range []struct {
		name string
		cmd  sandbox.Command
		kind fault.Kind
		code int // of an ExecError; 0: there is none
	}{
		{"not in PATH", sandbox.Command{Argv: []string{"no-such-command"}}, fault.NotFound, 127},
		{"no such file", sandbox.Command{Argv: []string{"/no/such"}}, fault.NotFound, 127},
		{"below a file", sandbox.Command{Argv: []string{"/plain/x"}}, fault.NotFound, 127},
		{"no interpreter", sandbox.Command{Argv: []string{"/bad"}}, fault.NotFound, 127},
		{"directory", sandbox.Command{Argv: []string{"/tmp"}}, fault.Invalid, 126},
		{"not executable", sandbox.Command{Argv: []string{"/plain"}}, fault.Invalid, 126},
		{"no program", sandbox.Command{Argv: []string{"/text"}}, fault.Invalid, 126},
		{"found but not executable", sandbox.Command{Argv: []string{"plain"}, Env: []string{"PATH=/none:/:/bin"}}, fault.Invalid, 126},
		{"no directory", sandbox.Command{Argv: []string{"true"}, Dir: "/no/such"}, fault.NotFound, 126},
		{"file as directory", sandbox.Command{Argv: []string{"true"}, Dir: "/plain"}, fault.Invalid, 126},
		{"relative directory", sandbox.Command{Argv: []string{"true"}, Dir: "tmp"}, fault.Invalid, 0},
		{"nothing", sandbox.Command{}, fault.Invalid, 0},
		{"NUL", sandbox.Command{Argv: []string{"a\x00b"}}, fault.Invalid, 0},
		{"user beyond the map", sandbox.Command{Argv: []string{"true"}, User: sandbox.User{User: confine.User{UID: 65536}}}, fault.Invalid, 0},
		{"too large", sandbox.Command{Argv: []string{"true", strings.Repeat("x", 2<<20)}}, fault.Invalid, 0},
		{"one argument too large", sandbox.Command{Argv: []string{"true", strings.Repeat("x", 200<<10)}}, fault.Invalid, 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := start(t, i, c.cmd)
			if !fault.Is(err, c.kind) {
				t.Fatalf("error %v of kind %s, want %s", err, fault.KindOf(err), c.kind)
			}
			var ee *sandbox.ExecError
			switch errors.As(err, &ee) {
			case true:
				if ee.ExitCode() != c.code {
					t.Errorf("%v: exit code %d, want %d", err, ee.ExitCode(), c.code)
				}
			case false:
				if c.code != 0 {
					t.Errorf("%v is no ExecError", err)
				}
			}
			if _, code := run(t, i, sandbox.Command{Argv: []string{"true"}}); code != 0 {
				t.Errorf("after it, true exits with %d", code)
			}
		})
	}
}

func TestLargeArgumentsArrive(t *testing.T) {
	i := boot(t)
	args := []string{"sh", "-c", `echo $# ${#X}`, "sh"}
	for range 3000 {
		args = append(args, strings.Repeat("a", 100))
	}
	out, code := run(t, i, sandbox.Command{Argv: args, Env: []string{"X=" + strings.Repeat("b", 100<<10)}})
	if code != 0 || out != "3000 102400\n" {
		t.Errorf("%d: %q", code, out)
	}
}

// Statuses reach their own waiters, however short the commands are and however
// many orphans end meanwhile with numbers that are used again.
func TestManyShortCommands(t *testing.T) {
	i := boot(t)
	var wg sync.WaitGroup
	for user := range 8 {
		wg.Go(func() {
			for n := range 40 {
				want := (user*40+n)%250 + 1
				p, r, err := start(t, i, sandbox.Command{Argv: []string{"/bin/sh", "-c", fmt.Sprintf("(true & true &); exit %d", want)}})
				if err != nil {
					t.Error(err)
					return
				}
				r.Close()
				<-p.Done()
				if _, lost := p.Status(); lost || p.ExitCode() != want {
					t.Errorf("exit %d, want %d", p.ExitCode(), want)
				}
			}
		})
	}
	wg.Wait()
	if out, _ := sh(t, i, "ps -e --no-headers | wc -l"); out != "4\n" { // PID 1, sh, ps, wc
		t.Errorf("%s processes are left", out)
	}
}
