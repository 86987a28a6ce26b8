// Package mount wraps the file-descriptor based mount calls of Linux: fsopen,
// fsconfig, fsmount, open_tree, move_mount and mount_setattr.
//
// A file system is configured as an [FS], made into a detached mount (a plain
// descriptor that nobody else can see), changed there, and attached only if it
// needs a path. A detached mount goes away with its last descriptor, so a
// process that is killed leaves none behind.
//
// Every error names the call and the option that the kernel refused, with the
// message that the file system wrote for it (see fsopen's "message log" in
// Documentation/filesystems/mount_api.rst).
package mount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Error is a mount call that failed. It unwraps to the errno.
type Error struct {
	// Call is the system call, for example "fsconfig".
	Call string
	// What names the option, path or file system it was about.
	What string
	// Log is what the file system said about it; often empty.
	Log string
	Err error
}

func (e *Error) Error() string {
	s := e.Call + " " + e.What + ": " + e.Err.Error()
	if e.Log != "" {
		s += " (" + e.Log + ")"
	}
	return s
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Err }

// FS is a file system that is being configured. Its methods remember the first
// error and do nothing after it, so a caller may configure in one go and look
// at the error of [FS.Mount] alone.
type FS struct {
	name string
	fd   int
	err  error
}

// New starts to configure a file system of the named type (fsopen, Linux 5.2).
func New(fstype string) *FS {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC) })
	if err != nil {
		return &FS{name: fstype, fd: -1, err: &Error{Call: "fsopen", What: fstype, Err: err}}
	}
	return &FS{name: fstype, fd: fd}
}

// Set gives an option its value.
func (f *FS) Set(key, value string) *FS {
	return f.config(key+"="+value, func() error { return unix.FsconfigSetString(f.fd, key, value) })
}

// Flag sets an option that has no value.
func (f *FS) Flag(key string) *FS {
	return f.config(key, func() error { return unix.FsconfigSetFlag(f.fd, key) })
}

// SetFD gives an option a descriptor as its value. Overlay takes its layers
// this way since Linux 6.13.
func (f *FS) SetFD(key string, fd int) *FS {
	return f.config(fmt.Sprintf("%s=descriptor %d", key, fd), func() error { return unix.FsconfigSetFd(f.fd, key, fd) })
}

// Err returns the first error so far.
func (f *FS) Err() error { return f.err }

// Mount makes the file system and a detached mount of it, with MOUNT_ATTR_*
// flags. The FS cannot be used afterwards, whatever the result.
func (f *FS) Mount(attr int) (fd int, err error) {
	defer f.Close()
	f.config("create", func() error { return unix.FsconfigCreate(f.fd) })
	if f.err != nil {
		return -1, f.err
	}
	fd, err = ignoringEINTR(func() (int, error) { return unix.Fsmount(f.fd, unix.FSMOUNT_CLOEXEC, attr) })
	if err != nil {
		return -1, &Error{Call: "fsmount", What: f.name, Log: f.log(), Err: err}
	}
	return fd, nil
}

// Close gives up a file system that was not mounted. It may be called twice.
func (f *FS) Close() {
	if f.fd >= 0 {
		unix.Close(f.fd)
		f.fd = -1
	}
}

func (f *FS) config(what string, call func() error) *FS {
	if f.err != nil {
		return f
	}
	if err := call(); err != nil {
		f.err = &Error{Call: "fsconfig", What: f.name + " " + what, Log: f.log(), Err: err}
	}
	return f
}

// log reads the messages that the file system left for this context. Each read
// returns one, as "e text" for an error, "w " and "i " for less.
func (f *FS) log() string {
	var lines []string
	buf := make([]byte, 1024)
	for {
		n, err := unix.Read(f.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return strings.Join(lines, "; ")
		}
		line := strings.TrimSpace(string(buf[:n]))
		if level, text, ok := strings.Cut(line, " "); ok && len(level) == 1 {
			line = text
		}
		lines = append(lines, line)
	}
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
