package rootfstest

import (
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Root is a mounted root, used the way a sandbox's root user uses it.
type Root struct {
	t  testing.TB
	FD int
}

// NewRoot wraps the descriptor of a root.
func NewRoot(t testing.TB, fd int) Root { return Root{t: t, FD: fd} }

// Path is the path of a file in the root, for code that [Root.Do] runs.
func (r Root) Path(p string) string { return "/proc/self/fd/" + strconv.Itoa(r.FD) + p }

// Close gives the mount up.
func (r Root) Close() {
	r.t.Helper()
	if err := unix.Close(r.FD); err != nil {
		r.t.Errorf("close root: %v", err)
	}
}

// Do runs f as root inside would run, as far as files are concerned, and fails
// the test with its error.
func (r Root) Do(f func() error) {
	r.t.Helper()
	if err := Do(f); err != nil {
		r.t.Fatal(err)
	}
}

// Do runs f on a thread of its own with the file system ids of root inside.
func Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends here
		result <- func() error {
			if err := unix.Setfsgid(Base); err != nil {
				return err
			}
			if err := unix.Setfsuid(Base); err != nil {
				return err
			}
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var d [2]unix.CapUserData
			if err := unix.Capget(&h, &d[0]); err != nil {
				return err
			}
			d[0].Effective, d[1].Effective = d[0].Permitted, d[1].Permitted
			// Quotas and reserves bind root inside, who has not the host's
			// right to exceed them.
			d[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			if err := unix.Capset(&h, &d[0]); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-result
}
