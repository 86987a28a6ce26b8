package descriptor

import (
	"fmt"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// parent opens the directory of a path, or the nearest one above it that still
// exists, and tells whether it is the former.
func (o *Opened) parent(name string) (fd int, exact bool, err error) {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		fd, err = openIn(o.target.Root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
		if err == nil {
			return fd, dir == path.Dir(name), nil
		}
		if err != unix.ENOENT && err != unix.ENOTDIR || dir == "/" {
			return -1, false, fmt.Errorf("open directory %s: %w", dir, err)
		}
	}
}

// unnamed lets make create something in a directory under a name that is free,
// and takes the name away again. The directory's times stay as they were.
func (o *Opened) unnamed(dir int, make func(name string) error) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	for i := 0; ; i++ {
		name := ".restored-" + strconv.Itoa(i)
		err := make(name)
		if err == unix.EEXIST {
			continue
		}
		if err != nil {
			return err
		}
		err = unix.Unlinkat(dir, name, 0)
		if err == unix.EISDIR {
			err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		}
		if err == nil {
			err = unix.UtimesNanoAt(unix.AT_FDCWD, procFD(dir), []unix.Timespec{st.Atim, st.Mtim}, 0)
		}
		return err
	}
}
