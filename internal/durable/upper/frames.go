package upper

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// openFrames is how many directories of a path are open at a time: paths may be
// deeper than a process may have files.
const openFrames = 64

// frame is a directory on the path that a walk is in.
type frame struct {
	ino uint64
	fd  int // -1 while it is closed
}

// frames is that path, from the root on. The root's descriptor is somebody
// else's.
type frames []frame

// top is the directory that the walk is in.
func (f frames) top() *frame { return &f[len(f)-1] }

// push enters a directory, whose descriptor belongs to the path from now on.
func (f *frames) push(ino uint64, fd int) {
	*f = append(*f, frame{ino, fd})
	if i := len(*f) - 1 - openFrames; i > 0 {
		_ = unix.Close((*f)[i].fd)
		(*f)[i].fd = -1
	}
}

// pop leaves a directory. One above that was closed is opened again.
func (f *frames) pop() error {
	n := len(*f) - 1
	gone, up := (*f)[n], &(*f)[n-1]
	var err error
	if up.fd < 0 {
		up.fd, err = unix.Openat(gone.fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
		if err != nil {
			err = fmt.Errorf("go up from a directory: %w", err)
		}
	}
	_ = unix.Close(gone.fd)
	*f = (*f)[:n]
	return err
}

// close leaves all directories.
func (f *frames) close() {
	for i, d := range *f {
		if i > 0 && d.fd >= 0 {
			_ = unix.Close(d.fd)
		}
	}
	*f = nil
}
