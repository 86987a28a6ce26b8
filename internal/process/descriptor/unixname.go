package descriptor

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// nameAt is where a path is bound.
type nameAt struct {
	base      string   // the directory to be in
	bound     string   // where bind makes the file
	there     []string // directories that are there for the time, because the address leads through them
	aside, of string   // where what is in the way was put meanwhile, and its own name
	dirs      []dirTimes
}

// dirTimes are a directory and the times that it had.
type dirTimes struct {
	fd     int
	before unix.Stat_t
}

// prepareName makes way for the file of a name. What it returns is to be closed, also
// after an error.
func (w *workshop) prepareName(k *worker, b *binding) (*nameAt, error) {
	at := &nameAt{}
	p, ok := sunPath(b.address)
	if !ok {
		return at, nil
	}
	at.bound = p
	if p[0] != '/' {
		if at.base = b.socket.Unix.Base; at.base == "" {
			at.base = "/"
		}
		at.bound = path.Join(at.base, p)
	}
	dir, err := w.prepareDirectory(k, b, at)
	if err != nil {
		return at, err
	}
	if at.base != "" {
		k.call(unix.SYS_CHDIR, at.base)
	}
	var st unix.Stat_t
	if len(at.there) == 0 && unix.Fstatat(dir, path.Base(at.bound), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		if !b.gone && b.socket.Unix.Path == at.bound && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			k.call(unix.SYS_UNLINK, at.bound) // it is made anew
		} else {
			at.putAside(k, b, at.bound)
		}
	}
	return at, k.room()
}

// prepareDirectory makes the directory of a name, if it was removed or renamed since, or is one of a
// changed root. It returns the nearest one that was there.
func (w *workshop) prepareDirectory(k *worker, b *binding, at *nameAt) (int, error) {
	dir := path.Dir(at.bound)
	var missing []string
	for ; ; dir = path.Dir(dir) {
		err := at.note(w.target.Root, dir)
		if err == nil {
			break
		}
		if err != unix.ENOENT && err != unix.ENOTDIR || dir == "/" {
			return -1, fmt.Errorf("directory %s: %w", dir, err)
		}
		missing = append(missing, dir)
	}
	fd := at.dirs[0].fd
	if u := b.socket.Unix; !b.gone && path.Dir(u.Path) != dir {
		if err := at.note(w.target.Root, path.Dir(u.Path)); err != nil {
			return -1, fmt.Errorf("directory %s: %w", path.Dir(u.Path), err)
		}
	}
	slices.Reverse(missing)
	at.there = missing
	for i, name := range missing {
		var st unix.Stat_t
		if i == 0 && unix.Fstatat(fd, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil { // it is no directory
			at.putAside(k, b, name)
		}
		if err := k.room(); err != nil {
			return -1, err
		}
		k.call(unix.SYS_MKDIR, name, 0o700)
	}
	return fd, k.room()
}

func (at *nameAt) putAside(k *worker, b *binding, name string) {
	at.of, at.aside = name, name+".restored-"+strconv.Itoa(b.socket.Unix.Name)
	k.call(unix.SYS_RENAME, at.of, at.aside)
}

// note opens a directory and keeps its times.
func (at *nameAt) note(root int, dir string) error {
	fd, err := openIn(root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	d := dirTimes{fd: fd}
	if err := unix.Fstat(fd, &d.before); err != nil {
		_ = unix.Close(fd)
		return err
	}
	at.dirs = append(at.dirs, d)
	return nil
}

// finishName puts the file of a name where it was, as it was.
func (w *workshop) finishName(k *worker, b *binding, at *nameAt) error {
	if at.bound == "" {
		return nil
	}
	u := b.socket.Unix
	switch {
	case b.gone:
		k.call(unix.SYS_UNLINK, at.bound)
	default:
		k.call(unix.SYS_CHMOD, at.bound, u.FileMode)
		k.call(unix.SYS_LCHOWN, at.bound, u.FileUID, u.FileGID)
		for _, a := range u.FileAttributes {
			if err := k.room(); err != nil {
				return err
			}
			k.call(unix.SYS_LSETXATTR, at.bound, a.Name, k.batch.Put(a.Value), len(a.Value), 0)
		}
		if t := u.FileModified; t != (unix.Timespec{}) {
			times := k.batch.PutWords(0, unix.UTIME_OMIT, uint64(t.Sec), uint64(t.Nsec)) //nolint:gosec // as the kernel has them
			k.call(unix.SYS_UTIMENSAT, unix.AT_FDCWD, at.bound, times, unix.AT_SYMLINK_NOFOLLOW)
		}
		if u.Path != at.bound {
			k.call(unix.SYS_RENAME, at.bound, u.Path)
		}
	}
	if at.base != "" {
		k.call(unix.SYS_CHDIR, "/")
	}
	for _, name := range slices.Backward(at.there) {
		if err := k.room(); err != nil {
			return err
		}
		k.call(unix.SYS_RMDIR, name)
	}
	if at.aside != "" {
		k.call(unix.SYS_RENAME, at.aside, at.of)
	}
	return nil
}

// settle sets the times of directories back.
func (at *nameAt) settle() error {
	for _, d := range at.dirs {
		err := unix.UtimesNanoAt(unix.AT_FDCWD, procFD(d.fd), []unix.Timespec{d.before.Atim, d.before.Mtim}, 0)
		if err != nil {
			return fmt.Errorf("set the times of a directory back: %w", err)
		}
	}
	return nil
}

func (at *nameAt) close() {
	for _, d := range at.dirs {
		_ = unix.Close(d.fd)
	}
	at.dirs = nil
}

// refuseUnbindable refuses a name that cannot be bound again: its address leads through directories that
// are not there any more and cannot be made, or its file, which is at place unless that is
// empty, is in another file system than what the address leads to.
func (c *Capturer) refuseUnbindable(d *description, base, address, place string) error {
	no := func(why string) error {
		return c.refuse(d, "a unix socket with the name "+address+", "+why+",", "close it")
	}
	dir := address[:strings.LastIndexByte(address, '/')+1] // as it is: the kernel does not leave ".." out
	if !strings.HasPrefix(address, "/") {
		dir = base + "/" + dir
	}
	fd, err := openIn(c.env.Root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil && (path.Clean(address) != address || strings.HasPrefix(address, "..")) {
		return no("whose directory is gone")
	}
	for dir = path.Clean(dir); err != nil; dir = path.Dir(dir) {
		if err != unix.ENOENT && err != unix.ENOTDIR || dir == "/" {
			return fmt.Errorf("directory %s of a unix socket: %w", dir, err)
		}
		fd, err = openIn(c.env.Root, path.Dir(dir), unix.O_PATH|unix.O_DIRECTORY)
	}
	defer unix.Close(fd)
	if place == "" || path.Dir(place) == dir {
		return nil
	}
	there, err := openIn(c.env.Root, path.Dir(place), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("directory %s of a unix socket: %w", path.Dir(place), err)
	}
	defer unix.Close(there)
	var a, b unix.Stat_t
	if err := unix.Fstat(fd, &a); err != nil {
		return err
	}
	if err := unix.Fstat(there, &b); err != nil {
		return err
	}
	if a.Dev != b.Dev {
		return no("bound in a changed root or renamed since, in another file system")
	}
	return nil
}

// refuseLostName refuses the name of an end that is gone, if nobody could have it again.
func (c *Capturer) refuseLostName(d *description, s *image.Socket, address []byte) error {
	p, ok := sunPath(address)
	if !ok {
		return nil
	}
	base := s.Unix.Base
	if base == "" {
		base = "/"
	}
	return c.refuseUnbindable(d, base, p, "")
}

// sunPath is the path of an address, ok if it has one (unix(7)).
func sunPath(address []byte) (p string, ok bool) {
	if len(address) < 3 || address[2] == 0 {
		return "", false
	}
	return unix.ByteSliceToString(address[2:]), true
}

// printable is an address as ss(8) shows it.
func printable(address []byte) string {
	if p, ok := sunPath(address); ok {
		return p
	}
	if len(address) < 3 {
		return "no name"
	}
	return "@" + string(address[3:])
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
