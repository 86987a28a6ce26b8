// Package fsid does work on files with the ids of somebody else.
package fsid

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// As runs f with the file system ids given (setfsuid(2)) and all capabilities,
// on an OS thread of its own for the time. When the ids cannot be set back the
// thread is not used again: it ends with its goroutine.
//
// File systems whose user namespace has no id for host root need it: files
// cannot be made there otherwise (EOVERFLOW).
func As(uid, gid int, f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := set(uid, gid)
		if err == nil {
			err = f()
		}
		if set(0, 0) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// set changes the calling thread's fsuid and fsgid, and raises the
// capabilities that leaving fsuid 0 drops (capabilities(7), "Effect of user ID
// changes on capabilities").
func set(uid, gid int) error {
	// setfsuid(2) returns the id before and reports no error; a second call
	// with an id that cannot be tells what is set now.
	if err := unix.Setfsgid(gid); err != nil {
		return err
	}
	if err := unix.Setfsuid(uid); err != nil {
		return err
	}
	if now, _ := unix.SetfsuidRetUid(-1); now != uid {
		return fault.New(fault.Permission, "cannot act as uid %d", uid)
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	d[0].Effective, d[1].Effective = d[0].Permitted, d[1].Permitted
	return unix.Capset(&h, &d[0])
}
