package feature_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
)

func TestProbe(t *testing.T) {
	before := world(t)
	for _, r := range feature.Probe(context.Background()) {
		t.Logf("%-26s %v", r.Name, r.Err)
		var m *feature.MissingError
		switch {
		case r.Err == nil:
		case errors.As(r.Err, &m):
			if r.Required {
				t.Logf("%s is required", r.Name)
			}
		case fault.Is(r.Err, fault.Permission) && os.Getuid() != 0:
		default:
			t.Errorf("%s: %v", r.Name, r.Err)
		}
	}
	if after := world(t); after != before {
		t.Errorf("probes left something: before %v, after %v", before, after)
	}
}

// world counts what a probe could leave.
func world(t *testing.T) (s struct{ fds, mounts, children int }) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	s.fds = len(fds)
	for _, c := range mounts {
		if c == '\n' {
			s.mounts++
		}
	}
	if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		s.children++
	}
	return s
}

func TestFeaturesAreDescribed(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range feature.All() {
		if f.Name == "" || f.For == "" || f.Without == "" || f.Kernel == "" || seen[f.Name] {
			t.Errorf("%+v", f)
		}
		seen[f.Name] = true
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, r := range feature.Probe(ctx) {
		if !errors.Is(r.Err, context.Canceled) {
			t.Errorf("%s: %v", r.Name, r.Err)
		}
	}
}

func TestMissingError(t *testing.T) {
	err := fmt.Errorf("start: %w", feature.Missing("EROFS from a file", unix.ENOTBLK))
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" || !errors.Is(err, unix.ENOTBLK) {
		t.Errorf("kind %s, hint %q", fault.KindOf(err), fault.HintOf(err))
	}
	// A feature without a hint must not send HintOf in circles.
	if h := fault.HintOf(feature.Missing("PROCMAP_QUERY", unix.ENOTTY)); h != "" {
		t.Errorf("hint %q", h)
	}
	t.Log(err)
}

func TestRequire(t *testing.T) {
	here := func() error { return nil }
	absent := func() error { return unix.ENOSYS }
	refused := func() error { return unix.EPERM }
	one := feature.Feature{Name: "one", Kernel: "6.7", Without: "nothing runs", Required: true}
	two := feature.Feature{Name: "two", Kernel: "5.9", Without: "all is lost", Required: true}
	three := feature.Feature{Name: "three", Kernel: "6.13"}
	probes := func(one, two, three func() error) map[string]func() error {
		return map[string]func() error{"one": one, "two": two, "three": three}
	}
	for _, p := range []map[string]func() error{probes(here, here, here), probes(here, refused, absent)} {
		if err := feature.RequireOf(context.Background(), p, one, two, three); err != nil {
			t.Error(err)
		}
	}
	err := feature.RequireOf(context.Background(), probes(absent, absent, absent), one, two, three)
	var m *feature.MissingError
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) == "" || !errors.As(err, &m) || m.Feature != "one" {
		t.Errorf("kind %s, hint %q: %v", fault.KindOf(err), fault.HintOf(err), err)
	}
	for _, part := range []string{"one is missing (Linux 6.7 has it", feature.Release(), "nothing runs; two is missing", "all is lost"} {
		if err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := feature.RequireOf(ctx, probes(here, here, here), one); !fault.Is(err, fault.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// fakeTB records a skip.
type fakeTB struct {
	testing.TB
	skipped bool
}

func (f *fakeTB) Helper()              {}
func (f *fakeTB) Skipf(string, ...any) { f.skipped = true }

func TestSkipOnlyOnMissing(t *testing.T) {
	for _, tt := range []struct {
		err  error
		skip bool
	}{
		{nil, false}, {errors.New("x"), false}, {fault.New(fault.Unsupported, "x"), false},
		{fmt.Errorf("y: %w", feature.Missing("TUN", unix.ENODEV)), true},
	} {
		f := &fakeTB{}
		featuretest.SkipIfMissing(f, tt.err)
		if f.skipped != tt.skip {
			t.Errorf("%v: skipped %v", tt.err, f.skipped)
		}
	}
}
