// Package thread runs functions on OS threads that nothing else uses.
package thread

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Own runs f on an OS thread that ends with it, so that nothing of what f changes
// about its thread is left: root and working directory (unshare(2) of CLONE_FS),
// namespaces, ids.
//
// It is never the process's main thread. That does not end with a goroutine, and
// /proc/self speaks of it: with its root changed, /proc/self/mountinfo would show
// other mounts to the whole process (proc_pid_mountinfo(5)).
func Own(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			result <- f()
			return // locked: the thread ends, too
		}
		err := Own(f) // on another one, while the main thread is held here
		runtime.UnlockOSThread()
		result <- err
	}()
	return <-result
}

// NoSetuidFixup is the secure bit that keeps the capabilities of a thread whose user
// ids change (SECBIT_NO_SETUID_FIXUP, capabilities(7)).
const NoSetuidFixup = 1 << 2

// As calls f while the OS thread that it is called on, and no other, acts as another
// effective user, with all the capabilities that it has and root's rights to files. So it
// has all capabilities, also those that root lacks here, in user namespaces that
// belong to that user (user_namespaces(7)).
//
// The goroutine must be locked to a thread of [Own]: for the process's main thread the
// kernel would forget PR_SET_PDEATHSIG (prctl(2)). The whole process is not dumpable any more
// (PR_SET_DUMPABLE): the kernel says so of memory whose user changes.
func As(user uint32, f func() error) error {
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits|NoSetuidFixup), 0, 0, 0)
	}
	if err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if err = become(user); err == nil {
		err = errors.Join(f(), become(0)) // the latter never fails: root is the real user
	}
	if e := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits), 0, 0, 0); e != nil {
		err = errors.Join(err, fmt.Errorf("let go of capabilities: %w", e))
	}
	return err
}

// become changes the effective user of the calling thread alone, which the wrappers of the
// standard library do not do.
func become(user uint32) error {
	const stays, root = ^uintptr(0), 0
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, stays, uintptr(user), stays); errno != 0 {
		return fmt.Errorf("become user %d: %w", user, errno)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, root, 0, 0) // it has no errors
	return nil
}
