package sandbox

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tracee"
)

// OpenFile opens a regular file for reading.
func (i *Incarnation) OpenFile(p string) (*os.File, error) {
	fd, _, err := i.locate("open", p, false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := checkData("open", p, fd); err != nil {
		return nil, err
	}
	return i.reopen("open", p, fd, unix.O_RDONLY, nil)
}

// CreateFile makes a regular file with a mode (permission bits, setuid and
// sticky included) and an owner, or empties one that exists, and opens it for
// writing.
func (i *Incarnation) CreateFile(p string, mode uint32, uid, gid int) (*os.File, error) {
	const what = "create"
	if err := checkOwner(what, p, mode, uid, gid); err != nil {
		return nil, err
	}
	if _, _, err := split(what, p); err != nil {
		return nil, err
	}
	own := func(b *tracee.Batch, fd tracee.Ref) {
		b.Call(unix.SYS_FCHOWN, fd, uid, gid)
		b.Call(unix.SYS_FCHMOD, fd, mode) // after it: a change of owner clears setuid
	}
	fds, err := i.fileBatch(what, p, func(b *tracee.Batch) int {
		fd := queueLookup(b, p, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		own(b, fd)
		b.SendFDs(fd)
		return 1
	})
	if err == nil {
		return os.NewFile(uintptr(fds[0]), p), nil
	}
	if !fault.Is(err, fault.Exists) {
		return nil, err
	}
	fd, _, err := i.locate(what, p, false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := checkData(what, p, fd); err != nil {
		return nil, err
	}
	return i.reopen(what, p, fd, unix.O_WRONLY|unix.O_TRUNC, own)
}

// reopen opens the file at a place for its data. It is PID 1 that does, with
// the rights of the sandbox's root.
func (i *Incarnation) reopen(what, p string, place int, flags uint64, then func(*tracee.Batch, tracee.Ref)) (*os.File, error) {
	fds, err := i.fileBatch(what, p, func(b *tracee.Batch) int {
		queueReceive(b, 1)
		// NONBLOCK: somebody may hold a lease on it (fcntl(2)).
		fd := b.Call(unix.SYS_OPEN, "/proc/self/fd/0", flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if then != nil {
			then(b, fd)
		}
		b.Call(unix.SYS_FCNTL, fd, unix.F_SETFL, 0)
		b.SendFDs(fd)
		return 1
	}, place)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), p), nil
}

// dataFilesystems are those whose regular files are nothing but data. Those of
// others act when they are read or written; /proc/1/mem is PID 1 itself.
var dataFilesystems = map[int64]bool{
	unix.OVERLAYFS_SUPER_MAGIC: true, unix.TMPFS_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true,
	unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.EROFS_SUPER_MAGIC_V1: true,
}

// checkData refuses a place whose data must not be opened.
func checkData(what, p string, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.New(fault.Internal, "%s %q: %w", what, p, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return fault.New(fault.Invalid, "%s %q: it is a directory", what, p)
	default:
		return fault.New(fault.Invalid, "%s %q: it is not a regular file", what, p)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fault.New(fault.Internal, "%s %q: %w", what, p, err)
	}
	if !dataFilesystems[fs.Type] {
		return fault.New(fault.Invalid, "%s %q: it is a file of the kernel's, not data", what, p).
			WithHint("use a command inside the sandbox, such as cat")
	}
	return nil
}

func checkOwner(what, p string, mode uint32, uid, gid int) error {
	if mode&^0o7777 != 0 {
		return fault.New(fault.Invalid, "%s %q: mode %#o has more than permission bits", what, p, mode)
	}
	for _, id := range []int{uid, gid} {
		if id < 0 || id >= confine.MappedIDs {
			return fault.New(fault.Invalid, "%s %q: a sandbox has no user or group %d, the highest is %d", what, p, id, confine.MappedIDs-1)
		}
	}
	return nil
}
