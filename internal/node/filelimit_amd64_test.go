package node

import (
	"log/slog"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine/seccomp"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// Where the kernel refuses, the node counts on the descriptors that it has.
func TestFileLimitThatCannotBeRaised(t *testing.T) {
	roottest.Need(t, "a seccomp filter of one thread")
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: was.Max - 1, Max: was.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	refused := seccomp.Call{Else: seccomp.Errno(unix.EPERM)}
	sets := seccomp.Call{
		Rules: []seccomp.Rule{{Args: []seccomp.Arg{seccomp.Is(2, 0)}, Action: seccomp.Allow}}, // no new limit
		Else:  seccomp.Errno(unix.EPERM),
	}
	for _, c := range []struct {
		what  string
		calls map[int]seccomp.Call
		want  int
	}{
		{"setrlimit", map[int]seccomp.Call{unix.SYS_SETRLIMIT: refused, unix.SYS_PRLIMIT64: sets}, int(low.Cur)},
		{"getrlimit", map[int]seccomp.Call{unix.SYS_GETRLIMIT: refused, unix.SYS_PRLIMIT64: refused}, usualFiles},
	} {
		filter, err := seccomp.Policy{
			Arch: unix.AUDIT_ARCH_X86_64, Foreign: seccomp.Kill, Calls: c.calls,
			Default: seccomp.Allow, Newer: seccomp.Allow,
		}.Compile()
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan int)
		go func() {
			defer close(got)
			runtime.LockOSThread() // for good: the thread ends with its filter
			if err := seccomp.Install(filter); err != nil {
				t.Error(err)
				return
			}
			got <- raiseFileLimit(slog.New(slog.DiscardHandler))
		}()
		if n := <-got; n != c.want {
			t.Errorf("without %s: %d descriptors, want %d", c.what, n, c.want)
		}
	}
	if n := raiseFileLimit(slog.New(slog.DiscardHandler)); n != int(was.Max) {
		t.Errorf("where it may be raised: %d descriptors of %d", n, was.Max)
	}
}
