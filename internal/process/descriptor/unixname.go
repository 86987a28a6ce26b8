package descriptor

import (
	"fmt"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// nameAt is where a path is bound.
type nameAt struct {
	base   string // the directory to be in
	bound  string // where bind makes the file
	aside  string // where what is there was put meanwhile
	dir    int    // the directory, to set its times back, or -1
	before unix.Stat_t
}

// prepareName makes way for the file of a name.
func (w *workshop) prepareName(k *worker, b *binding) (*nameAt, error) {
	at := &nameAt{dir: -1}
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
		k.call(unix.SYS_CHDIR, at.base)
	}
	dir, err := openIn(w.target.Root, path.Dir(at.bound), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", path.Dir(at.bound), err)
	}
	at.dir = dir
	if err := unix.Fstat(dir, &at.before); err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path.Base(at.bound), &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
		if !b.gone && b.socket.Unix.Path == at.bound && st.Mode&unix.S_IFMT == unix.S_IFSOCK {
			k.call(unix.SYS_UNLINK, at.bound) // it is made anew
		} else {
			at.aside = at.bound + ".restored-" + strconv.Itoa(b.socket.Unix.Name)
			k.call(unix.SYS_RENAME, at.bound, at.aside)
		}
	}
	return at, nil
}

// finishName puts the file of a name where it was, as it was.
func (w *workshop) finishName(k *worker, b *binding, at *nameAt) {
	if at.bound == "" {
		return
	}
	u := b.socket.Unix
	switch {
	case b.gone:
		k.call(unix.SYS_UNLINK, at.bound)
	default:
		k.call(unix.SYS_CHMOD, at.bound, u.FileMode)
		k.call(unix.SYS_LCHOWN, at.bound, u.FileUID, u.FileGID)
		if u.Path != at.bound {
			k.call(unix.SYS_RENAME, at.bound, u.Path)
		}
	}
	if at.aside != "" {
		k.call(unix.SYS_RENAME, at.aside, at.bound)
	}
	if at.base != "" {
		k.call(unix.SYS_CHDIR, "/")
	}
}

// settle sets the times of the directory back.
func (at *nameAt) settle() error {
	if at.dir < 0 {
		return nil
	}
	defer unix.Close(at.dir)
	err := unix.UtimesNanoAt(unix.AT_FDCWD, procFD(at.dir), []unix.Timespec{at.before.Atim, at.before.Mtim}, 0)
	if err != nil {
		return fmt.Errorf("set the times of a directory back: %w", err)
	}
	return nil
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
