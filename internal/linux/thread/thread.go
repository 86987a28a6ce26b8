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

// As calls f while the OS thread that it is called on, and no other, acts as another
// effective user, with all the capabilities that it has and root's rights to files. So it
// has all capabilities, also those that root lacks here, in user namespaces that
// belong to that user (user_namespaces(7)).
//
// The goroutine is locked to a thread of [Own]: for the process's main thread the
// kernel would forget PR_SET_PDEATHSIG (prctl(2)).
func As(user uint32, f func() error) error {
	if err := become(secbitNoSetuidFixup, user); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, become(0, 0))
}

// secbitNoSetuidFixup is SECBIT_NO_SETUID_FIXUP, capabilities(7).
const secbitNoSetuidFixup = 1 << 2

// become changes the calling thread alone, which the wrappers of the standard library
// do not do. Whoever sets the bit does so first, and whoever clears it last.
func become(bits int, user uint32) error {
	const stays, root = ^uintptr(0), 0
	if bits != 0 {
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits), 0, 0, 0); err != nil {
			return fmt.Errorf("keep capabilities: %w", err)
		}
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, stays, uintptr(user), stays); errno != 0 {
		return fmt.Errorf("become user %d: %w", user, errno)
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, root, 0, 0) // it has no errors
	if bits == 0 {
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("let go of capabilities: %w", err)
		}
	}
	return nil
}
