package descriptor

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// asOwner runs f with the file system ids of a file's owner, so that what it
// creates is the owner's: an idmapped file system refuses to create files of
// an owner that it does not map, as the host's root. The thread's capabilities
// stay, though the kernel drops some when the ids change (capabilities(7)).
func asOwner(uid, gid uint32, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&hdr, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	oldGID := setFS(unix.SYS_SETFSGID, gid)
	oldUID := setFS(unix.SYS_SETFSUID, uid)
	err := unix.Capset(&hdr, &caps[0])
	if err == nil {
		err = f()
	}
	setFS(unix.SYS_SETFSUID, oldUID)
	setFS(unix.SYS_SETFSGID, oldGID)
	if e := unix.Capset(&hdr, &caps[0]); err == nil && e != nil {
		err = fmt.Errorf("capset: %w", e)
	}
	return err
}

// setFS changes a file system id of this thread alone and returns the old one.
func setFS(nr uintptr, id uint32) uint32 {
	old, _, _ := unix.RawSyscall(nr, uintptr(id), 0, 0)
	return uint32(old)
}

// pushByte makes a terminal receive one byte as if it was typed, at once
// (TIOCSTI).
func pushByte(fd int, b byte) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&b)))
	if e != 0 {
		return e
	}
	return nil
}
