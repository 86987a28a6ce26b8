package rootfstest

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The ids that root inside, and those after it, have on the host in tests.
const (
	Base  = 0x2fff0000
	count = 65536
)

// UserNS makes a user namespace that maps 0 and on to [Base] and on, and
// returns a descriptor of it that is closed with the test.
func UserNS(t testing.TB) int {
	t.Helper()
	// The namespace lives on in the descriptor when its process is gone.
	c := exec.Command("sleep", "60")
	m := []syscall.SysProcIDMap{{ContainerID: 0, HostID: Base, Size: count}}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: m, GidMappings: m, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatalf("make a user namespace: %v", err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	fd, err := unix.Open("/proc/"+strconv.Itoa(c.Process.Pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(&os.PathError{Op: "open", Path: "user namespace", Err: err})
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
