package descriptor

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// procFile are files and directories of /proc, /sys and the cgroup file
// systems. The kernel checks the rights of whoever opened such a file when it
// is read, so they are opened by a process of the sandbox and never with ours.
type procFile struct{ simple }

func (procFile) name() image.FileKind { return image.ProcFile }

func (procFile) claims(c *Capturer, d *description) bool {
	f := d.format()
	return (f == unix.S_IFREG || f == unix.S_IFDIR || f == unix.S_IFLNK) && kernelFiles(c.system(d))
}

func (procFile) examine(c *Capturer, d *description) error {
	name, deleted, err := c.locate(d)
	if err != nil {
		return err
	}
	if deleted && strings.HasPrefix(d.link, "/proc/sys/") && !strings.HasSuffix(d.link, deletedSuffix) {
		// What is at such a path is the looking process's, by its namespaces: it is another file for us.
		deleted = false
	}
	if deleted {
		return c.refuse(d, fmt.Sprintf("%s, whose process or object has gone,", name), "close it")
	}
	d.file.Path = name
	return nil
}

func (procFile) late() bool { return true }

// openByOwner has the process that a file of /proc is of open it, if that is another one than the
// one that gets it: nobody else may open most of a process that is not dumpable, and none is
// dumpable yet. It returns -1 if it is no such file.
func openByOwner(c Opening, f *image.File) (fd int, err error) {
	rest, ok := strings.CutPrefix(f.Path, "/proc/")
	if !ok {
		return -1, nil
	}
	number, _, _ := strings.Cut(rest, "/")
	pid, err := strconv.Atoi(number)
	if err != nil || pid == c.PID || c.Other == nil {
		return -1, nil
	}
	run, pidfd, ok := c.Other(pid)
	if !ok {
		return -1, nil
	}
	b := tracee.NewBatch()
	got := openHere(b, f)
	if err := run(b); err != nil {
		return -1, fmt.Errorf("have process %d open its %s: %w", pid, f.Path, err)
	}
	there := b.Value(got)
	fd, err = unix.PidfdGetfd(pidfd, there, 0)
	b = tracee.NewBatch()
	b.Call(unix.SYS_CLOSE, there)
	if e := run(b); err == nil {
		err = e
	}
	if err == nil && f.Flags&unix.O_PATH == 0 {
		if f.Flags&unix.O_ASYNC != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, f.Flags&settable)
		}
		if f.Pos != 0 && err == nil {
			_, err = unix.Seek(fd, f.Pos, unix.SEEK_SET)
		}
	}
	if err != nil {
		return fd, fmt.Errorf("open %s: %w", f.Path, err)
	}
	return fd, nil
}

// openHere queues that a process opens a file by its path. Files of a process that is not dumpable belong to
// the host's root, so nobody inside may open those that not everybody may (io, mem, environ): it
// is dumpable for that one call. Nobody is there who could make use of it: none of the tree runs yet.
func openHere(b *tracee.Batch, f *image.File) tracee.Ref {
	flags := f.Flags&(reopenable|unix.O_NOFOLLOW) | unix.O_NOCTTY | unix.O_CLOEXEC
	if f.Kind != image.ProcFile {
		return b.Call(unix.SYS_OPEN, f.Path, flags, 0)
	}
	confine.Dumpable(b)
	got := b.Call(unix.SYS_OPEN, f.Path, flags, 0)
	confine.Undumpable(b)
	return got
}

// ofThread reports whether a path is one of a file of /proc that is there when a thread is, other than the first of a process.
func (o *Opened) ofThread(path string) bool {
	rest, ok := strings.CutPrefix(path, "/proc/")
	if !ok {
		return false
	}
	number, rest, _ := strings.Cut(rest, "/")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return false
	}
	if !o.exists(pid) { // a thread's number leads there, too
		return true
	}
	thread, ok := strings.CutPrefix(rest, "task/")
	if !ok {
		return false
	}
	number, _, _ = strings.Cut(thread, "/")
	return number != strconv.Itoa(pid)
}

func (procFile) open(*Opened, *image.File) (int, error) { return -1, errLate }
