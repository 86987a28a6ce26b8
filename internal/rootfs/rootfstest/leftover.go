package rootfstest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Leftovers is what a test could leave on the machine.
type Leftovers struct {
	mounts, loops []string
	files         int
}

// Before remembers what there is before a test, whose end [Leftovers.Check]
// compares with it.
func Before(t testing.TB) Leftovers {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var l Leftovers
	for line := range strings.Lines(string(b)) {
		// Nothing is said of others that work on the machine.
		if strings.Contains(line, os.TempDir()+"/"+testName(t)) {
			l.mounts = append(l.mounts, strings.TrimSpace(line))
		}
	}
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && strings.HasPrefix(string(b), os.TempDir()+"/"+testName(t)) {
			l.loops = append(l.loops, strings.TrimSpace(string(b)))
		}
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	l.files = len(fds)
	return l
}

// testName is how the temporary directories of a test begin.
func testName(t testing.TB) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// Check fails the test for what is there now and was not before. The kernel
// detaches loop devices a moment after their last user is gone.
func (l Leftovers) Check(t testing.TB) {
	t.Helper()
	var now Leftovers
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		now = Before(t)
		if l.same(now) || time.Now().After(deadline) {
			break
		}
	}
	for _, m := range now.mounts {
		if !slices.Contains(l.mounts, m) {
			t.Errorf("left mounted: %s", m)
		}
	}
	for _, f := range now.loops {
		if !slices.Contains(l.loops, f) {
			t.Errorf("left attached: %s", f)
		}
	}
	if now.files > l.files {
		t.Errorf("%d descriptors left open", now.files-l.files)
	}
}

func (l Leftovers) same(o Leftovers) bool {
	return slices.Equal(l.mounts, o.mounts) && slices.Equal(l.loops, o.loops) && l.files >= o.files
}
