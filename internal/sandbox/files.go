package sandbox

import (
	"errors"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tracee"
)

// File does one operation on files inside. Open and create return the file,
// which the caller closes.
//
// PID 1 looks paths up, from its root and with links taken relative to it, so
// that whatever the sandbox does meanwhile no path leads out; and it opens with
// its own rights, so that nothing of the host's is lent. Errors have the kinds
// NotFound, Exists, Permission, Exhausted (no room), Conflict (the file is in
// use) and Invalid (the path cannot be meant so).
func (i *Incarnation) File(r control.FileRequest) (reply control.FileReply, f *os.File, err error) {
	switch r.Op {
	case control.FileStat:
		reply.Entry, err = i.Stat(r.Path, r.NoFollow)
	case control.FileReadlink:
		reply.Entry, err = i.Readlink(r.Path)
	case control.FileList:
		reply.Entries, err = i.List(r.Path)
	case control.FileOpen:
		f, err = i.OpenFile(r.Path)
	case control.FileCreate:
		f, err = i.CreateFile(r.Path, r.Mode, r.UID, r.GID)
	case control.FileMkdir:
		err = i.Mkdir(r.Path, r.Mode, r.UID, r.GID)
	case control.FileSymlink:
		err = i.Symlink(r.Target, r.Path, r.UID, r.GID)
	case control.FileRename:
		err = i.Rename(r.Path, r.Target)
	case control.FileRemove:
		err = i.Remove(r.Path)
	default:
		err = fault.New(fault.Invalid, "there is no file operation %.40q", r.Op)
	}
	return reply, f, err
}

// Stat describes a file; with noFollow, a symbolic link itself.
func (i *Incarnation) Stat(p string, noFollow bool) (control.Entry, error) {
	fd, target, err := i.locate("stat", p, noFollow)
	if err != nil {
		return control.Entry{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return control.Entry{}, fault.New(fault.Internal, "stat %q: %w", p, err)
	}
	return i.entry(path.Base(p), target, &st), nil
}

// Readlink describes a symbolic link, with its target.
func (i *Incarnation) Readlink(p string) (control.Entry, error) {
	e, err := i.Stat(p, true)
	if err == nil && e.Mode&unix.S_IFMT != unix.S_IFLNK {
		err = fault.New(fault.Invalid, "read the link %q: it is none", p)
	}
	return e, err
}

func (i *Incarnation) entry(name, target string, st *unix.Stat_t) control.Entry {
	return control.Entry{
		Name: name, Mode: st.Mode, UID: i.inside(st.Uid), GID: i.inside(st.Gid), Size: st.Size,
		MTime: time.Unix(st.Mtim.Unix()), Target: target,
	}
}

// overflowID stands for ids that have no number inside (user_namespaces(7)).
const overflowID = 65534

func (i *Incarnation) inside(id uint32) int {
	if n, ok := i.seed.idmap.Inside(id); ok {
		return int(n)
	}
	return overflowID
}

// locate opens a path as a mere place (O_PATH): nothing of the file's is
// touched. A link's target comes with it.
func (i *Incarnation) locate(what, p string, noFollow bool) (fd int, target string, err error) {
	var flags uint64 = unix.O_PATH
	if noFollow {
		flags |= unix.O_NOFOLLOW
	}
	var link *tracee.Output
	var n tracee.Ref
	var b *tracee.Batch
	fds, err := i.fileBatch(what, p, func(q *tracee.Batch) int {
		b = q
		at := queueLookup(b, p, flags, 0)
		link = b.Output(maxDir + 1)
		n = b.Try(unix.SYS_READLINKAT, at, "", link, maxDir+1)
		b.SendFDs(at)
		return 1
	})
	if err != nil {
		return -1, "", err
	}
	if noFollow {
		if k, err := b.Result(n); err == nil && k > 0 {
			target = string(link.Bytes()[:min(int(k), len(link.Bytes()))])
		}
	}
	return fds[0], target, nil
}

// queueLookup opens a path below PID 1's root, which is its working directory
// too.
func queueLookup(b *tracee.Batch, p string, flags uint64, mode uint32) tracee.Ref {
	how := b.PutWords(flags|unix.O_CLOEXEC, uint64(mode), unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
	return b.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, p, how, openHowSize)
}

// fileBatch runs a batch about a path. The kernel gives up on a lookup through
// ".." while something is renamed or mounted (EAGAIN, openat2(2)); it is tried
// again.
func (i *Incarnation) fileBatch(what, p string, queue func(*tracee.Batch) (nFDs int), fds ...int) ([]int, error) {
	if p == "" || len(p) > maxDir || strings.ContainsRune(p, 0) {
		return nil, fault.New(fault.Invalid, "%s %.80q: it cannot be a path", what, p)
	}
	for try := 0; ; try++ {
		b := tracee.NewBatch()
		n := queue(b)
		got, err := doAndTidy(i, b, n, fds...)
		if err == nil {
			return got, nil
		}
		var call *tracee.CallError
		if try < 100 && errors.As(err, &call) && call.Errno == unix.EAGAIN && call.Name == "openat2" {
			continue
		}
		return nil, fileError(what, p, err)
	}
}

func fileError(what, p string, err error) error {
	var errno unix.Errno
	if errors.Is(err, tracee.ErrGone) || !errors.As(err, &errno) {
		return doError(what+" "+p, err)
	}
	kind := fault.Internal
	switch errno {
	case unix.ENOENT:
		kind = fault.NotFound
	case unix.EEXIST:
		kind = fault.Exists
	case unix.EACCES, unix.EPERM, unix.EROFS:
		kind = fault.Permission
	case unix.ENOSPC, unix.EDQUOT, unix.ENOMEM:
		kind = fault.Exhausted
	case unix.ETXTBSY, unix.EBUSY, unix.EAGAIN:
		kind = fault.Conflict
	case unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL, unix.ENXIO, unix.EXDEV:
		kind = fault.Invalid
	}
	return fault.New(kind, "%s %q: %w", what, p, errno)
}

// split takes the last name off a path that something is to be made at.
func split(what, p string) (dir, name string, err error) {
	p = strings.TrimRight(p, "/")
	dir, name = path.Split(p)
	if name == "" || name == "." || name == ".." {
		return "", "", fault.New(fault.Invalid, "%s %q: it names nothing new", what, p)
	}
	if dir == "" {
		dir = "/"
	}
	return dir, name, nil
}
