// Package unnamed makes files that get their name when they are whole: who is
// killed in the middle leaves nothing, and nobody sees a half one.
package unnamed

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// File is a file that is being written. It has no name (O_TMPFILE, open(2)), or on
// file systems without such files a hidden one.
type File struct {
	*os.File

	dir    *os.File
	hidden string // its name, if it has to have one
}

// Create makes an empty file for a directory, which stays the caller's and open
// until the file is named or closed. Its mode is 0600.
func Create(dir *os.File) (*File, error) {
	at := int(dir.Fd())
	fd, err := unix.Openat(at, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &File{File: os.NewFile(uintptr(fd), dir.Name()), dir: dir}, nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EINVAL) {
		return nil, &os.PathError{Op: "create a file in", Path: path.Clean(dir.Name()), Err: err}
	}
	name := hiddenName()
	fd, err = unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create a file in", Path: dir.Name(), Err: err}
	}
	return &File{File: os.NewFile(uintptr(fd), path.Join(dir.Name(), name)), dir: dir, hidden: name}, nil
}

func hiddenName() string { return ".sandtree-" + rand.Text() }

// Place gives the file its name, in the place of what has it, unless that is a
// directory, and closes it. If it fails nothing is left.
func (f *File) Place(name string) error {
	if name == "" || name == "." || name == ".." || path.Base(name) != name {
		return errors.Join(fmt.Errorf("%q is no name of a file", name), f.Close())
	}
	err := f.place(name)
	if err != nil {
		err = &os.PathError{Op: "make", Path: path.Join(f.dir.Name(), name), Err: err}
	}
	return errors.Join(err, f.Close())
}

func (f *File) place(name string) error {
	at := int(f.dir.Fd())
	if f.hidden == "" {
		self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		err := unix.Linkat(unix.AT_FDCWD, self, at, name, unix.AT_SYMLINK_FOLLOW)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		// Only a rename replaces, and it needs a name to begin with.
		hidden := hiddenName()
		if err := unix.Linkat(unix.AT_FDCWD, self, at, hidden, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
		f.hidden = hidden
	}
	if err := unix.Renameat(at, f.hidden, at, name); err != nil {
		return err
	}
	f.hidden = ""
	return nil
}

// Close closes the file. One that was not placed is gone.
func (f *File) Close() error {
	err := f.File.Close()
	if f.hidden != "" {
		err = errors.Join(err, unix.Unlinkat(int(f.dir.Fd()), f.hidden, 0))
		f.hidden = ""
	}
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}
