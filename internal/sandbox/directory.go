package sandbox

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tracee"
)

// MaxEntries is how many files List tells of at most.
const MaxEntries = 50_000

// List describes what a directory holds, by name, links not followed. A
// directory with more than [MaxEntries] is refused: Exhausted.
func (i *Incarnation) List(p string) ([]control.Entry, error) {
	fds, err := i.fileBatch("list", p, func(b *tracee.Batch) int {
		b.SendFDs(queueLookup(b, p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0))
		return 1
	})
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fds[0]), p)
	defer dir.Close()
	names, err := dir.Readdirnames(MaxEntries + 1)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, fault.New(fault.Internal, "list %q: %w", p, err)
	case len(names) > MaxEntries:
		return nil, fault.New(fault.Exhausted, "list %q: it has more than %d files", p, MaxEntries).
			WithHint("use a command inside the sandbox, such as find")
	}
	slices.Sort(names)
	entries := make([]control.Entry, 0, len(names))
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(fds[0], name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == unix.ENOENT {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, fault.New(fault.Internal, "list %q: %q: %w", p, name, err)
		}
		target := ""
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			target = readlinkat(fds[0], name)
		}
		entries = append(entries, i.entry(name, target, &st))
	}
	return entries, nil
}

// readlinkat reads a link's target, unless it is one of the kernel's, which
// would be shown as this process sees it.
func readlinkat(dir int, name string) string {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(dir, &fs); err != nil || !dataFilesystems[fs.Type] {
		return ""
	}
	buf := make([]byte, maxDir+1)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// Mkdir makes a directory with a mode and an owner. Its parent must exist.
func (i *Incarnation) Mkdir(p string, mode uint32, uid, gid int) error {
	const what = "make the directory"
	if err := checkOwner(what, p, mode, uid, gid); err != nil {
		return err
	}
	dir, name, err := split(what, p)
	if err != nil {
		return err
	}
	_, err = i.fileBatch(what, p, func(b *tracee.Batch) int {
		parent := queueLookup(b, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		b.Call(unix.SYS_MKDIRAT, parent, name, 0o700)
		fd := b.Call(unix.SYS_OPENAT, parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		b.Call(unix.SYS_FCHOWN, fd, uid, gid)
		b.Call(unix.SYS_FCHMOD, fd, mode)
		return 0
	})
	return err
}

// Symlink makes a symbolic link. The target may be anything that a link can
// hold.
func (i *Incarnation) Symlink(target, p string, uid, gid int) error {
	const what = "make the link"
	if target == "" || len(target) > maxDir || strings.ContainsRune(target, 0) {
		return fault.New(fault.Invalid, "%s %q: it cannot point to %.80q", what, p, target)
	}
	if err := checkOwner(what, p, 0, uid, gid); err != nil {
		return err
	}
	dir, name, err := split(what, p)
	if err != nil {
		return err
	}
	_, err = i.fileBatch(what, p, func(b *tracee.Batch) int {
		parent := queueLookup(b, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		b.Call(unix.SYS_SYMLINKAT, target, parent, name)
		b.Call(unix.SYS_FCHOWNAT, parent, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		return 0
	})
	return err
}

// Rename gives a file another path, in the place of the file that has it.
func (i *Incarnation) Rename(from, to string) error {
	const what = "rename"
	fromDir, fromName, err := split(what, from)
	if err != nil {
		return err
	}
	toDir, toName, err := split(what, to)
	if err != nil {
		return err
	}
	if len(to) > maxDir || strings.ContainsRune(to, 0) {
		return fault.New(fault.Invalid, "%s %.80q: it cannot be a path", what, to)
	}
	_, err = i.fileBatch(what, from, func(b *tracee.Batch) int {
		source := queueLookup(b, fromDir, unix.O_PATH|unix.O_DIRECTORY, 0)
		target := queueLookup(b, toDir, unix.O_PATH|unix.O_DIRECTORY, 0)
		b.Call(unix.SYS_RENAMEAT, source, fromName, target, toName)
		return 0
	})
	return err
}

// Remove removes a file that is no directory; of a symbolic link, the link.
func (i *Incarnation) Remove(p string) error {
	const what = "remove"
	dir, name, err := split(what, p)
	if err != nil {
		return err
	}
	_, err = i.fileBatch(what, p, func(b *tracee.Batch) int {
		parent := queueLookup(b, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		b.Call(unix.SYS_UNLINKAT, parent, name, 0)
		return 0
	})
	return err
}
