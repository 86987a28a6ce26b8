// Package thread runs functions on OS threads that nothing else uses.
package thread

import (
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
