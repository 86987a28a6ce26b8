package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// A container's top group has processes in it that must make room.
func TestEvacuate(t *testing.T) {
	roottest.Need(t, "this test")
	l, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	top := filepath.Join(l.Unified(), fmt.Sprintf("sandtree-test-evacuate-%d", os.Getpid()))
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	leaf := filepath.Join(top, namePrefix+"init")
	t.Cleanup(func() {
		for _, d := range []string{leaf, top} {
			if err := unix.Rmdir(d); err != nil {
				t.Errorf("%s: %v", d, err)
			}
		}
	})
	fd, err := unix.Open(top, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var pids []int
	for range 3 {
		c := exec.Command("/bin/sleep", "60")
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, c.Process.Pid)
		t.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
	}
	for range 2 { // the second time there is nothing to do
		if err := evacuate(top, leaf); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readPIDs(filepath.Join(leaf, "cgroup.procs"))
	slices.Sort(got)
	slices.Sort(pids)
	if err != nil || !slices.Equal(got, pids) {
		t.Errorf("in the leaf: %v, %v; want %v", got, err, pids)
	}
}
