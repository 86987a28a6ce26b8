package failpoint_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/failpoint"
)

var (
	one = failpoint.New("test.one")
	two = failpoint.New("test.two")
)

// With the variable set, the test binary passes a failpoint three times.
func TestMain(m *testing.M) {
	if os.Getenv(failpoint.Env) == "" {
		os.Exit(m.Run())
	}
	fmt.Println("check", failpoint.CheckEnv())
	for i := range 3 {
		fmt.Println(i, one.Hit())
	}
}

func TestNothingHappensByDefault(t *testing.T) {
	if err := one.Hit(); err != nil {
		t.Error(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = one.Hit() }); n > 0 {
		t.Errorf("%g allocations", n)
	}
	if got := failpoint.Names(); !slices.Equal(got, []string{"test.one", "test.two"}) {
		t.Errorf("names %v", got)
	}
	if err := failpoint.CheckEnv(); err != nil {
		t.Error(err)
	}
}

func TestEnable(t *testing.T) {
	t.Run("error", func(t *testing.T) {
		failpoint.Enable(t, "test.one", "error")
		var e *failpoint.Error
		if err := one.Hit(); !errors.As(err, &e) || e.Name != "test.one" {
			t.Errorf("got %v", err)
		}
		if err := two.Hit(); err != nil {
			t.Errorf("another one failed: %v", err)
		}
	})
	t.Run("the second pass", func(t *testing.T) {
		failpoint.Enable(t, "test.one", "2*error")
		for i, want := range []bool{false, true, false} {
			if err := one.Hit(); (err != nil) != want {
				t.Errorf("pass %d: %v", i, err)
			}
		}
	})
	t.Run("delay", func(t *testing.T) {
		failpoint.Enable(t, "test.one", "delay:20")
		t0 := time.Now()
		if err := one.Hit(); err != nil || time.Since(t0) < 20*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(t0))
		}
	})
	t.Run("panic", func(t *testing.T) {
		failpoint.Enable(t, "test.one", "panic")
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = one.Hit()
	})
	if err := one.Hit(); err != nil {
		t.Errorf("still enabled: %v", err)
	}
}

func TestDeclaredTwice(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	failpoint.New("test.one")
}

func TestEnvironment(t *testing.T) {
	for _, tt := range []struct {
		env, out string
		killed   bool
	}{
		{env: "test.one=error", out: "check <nil>\n0 failpoint test.one\n1 failpoint test.one\n2 failpoint test.one\n"},
		{env: " test.two=panic ; test.one=2*error;", out: "check <nil>\n0 <nil>\n1 failpoint test.one\n2 <nil>\n"},
		{env: "test.one=2*kill", out: "check <nil>\n0 <nil>\n", killed: true},
		{env: "test.oen=kill", out: "check SANDTREE_FAILPOINTS: no failpoint is named \"test.oen\"\n0 <nil>\n1 <nil>\n2 <nil>\n"},
		{env: "test.one=explode", out: "check SANDTREE_FAILPOINTS: test.one: action \"explode\" is none of error, panic, kill, delay:N\n0 <nil>\n1 <nil>\n2 <nil>\n"},
		{env: "test.one", out: "check SANDTREE_FAILPOINTS: \"test.one\" is not name=action\n0 <nil>\n1 <nil>\n2 <nil>\n"},
		{env: "test.one=delay:x", out: "check SANDTREE_FAILPOINTS: test.one: delay \"x\" is not a number of milliseconds\n0 <nil>\n1 <nil>\n2 <nil>\n"},
		{env: "test.one=0*kill", out: "check SANDTREE_FAILPOINTS: test.one: count \"0\" is not a positive number\n0 <nil>\n1 <nil>\n2 <nil>\n"},
	} {
		c := exec.Command("/proc/self/exe")
		c.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, failpoint.Env) }), failpoint.Env+"="+tt.env)
		out, err := c.Output()
		if string(out) != tt.out {
			t.Errorf("%s: got %q, want %q", tt.env, out, tt.out)
		}
		killed := err != nil && c.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if killed != tt.killed {
			t.Errorf("%s: %v", tt.env, err)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	for range b.N {
		_ = one.Hit()
	}
}
