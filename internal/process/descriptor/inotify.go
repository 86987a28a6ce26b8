package descriptor

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	events "github.com/sandtree/sandtree/internal/linux/inotify"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// inotify are instances (inotify_init(2)) with their watches, which are made
// anew on the same files. Events that nobody has read yet cannot be looked at
// without taking them away: they are put back by making them happen again, see
// package linux/inotify. That takes long, so it is not done before the program had
// some milliseconds to read them.
//
// An instance is made by the process, so that it counts to the sandbox's
// instances; its watches are added by this process, by the files themselves.
type inotify struct{}

func (inotify) name() image.FileKind { return image.Inotify }

func (inotify) late() bool { return true }

func (inotify) claims(c *Capturer, d *description) bool { return c.isAnonymous(d, "inotify") }

func (inotify) examine(c *Capturer, d *description) error {
	unread, err := events.Unread(d.fd)
	if err != nil {
		return err
	}
	if d.unread = unread; unread > 0 && c.env.Hasty {
		return c.refuse(d, "an inotify instance with events that it has not read", "let it read them").Passing()
	}
	text, err := c.info(d)
	if err != nil {
		return err
	}
	marks, err := parseMarks(text)
	if err != nil {
		return err
	}
	for _, m := range marks {
		path, err := c.pathOfMark(&m)
		if err != nil {
			return err
		}
		if path == "" {
			return c.refuse(d, fmt.Sprintf("an inotify watch (%d) of a file that has no name any more, or is the kernel's,", m.watch.Number),
				"have it remove the watch, or close it")
		}
		m.watch.Path = path
		d.file.Marks = append(d.file.Marks, m.watch)
	}
	return nil
}

// mark is a line of an inotify instance's fdinfo.
type mark struct {
	watch    image.Mark
	dev, ino uint64
	typ      int32 // of the handle
	handle   []byte
}

// parseMarks reads lines like "inotify wd:3 ino:9e7e sdev:800013 mask:800afce
// ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:7e9e0000640d1b6d"
// (proc_pid_fdinfo(5)). All numbers are hexadecimal, also wd, of which the page says
// that it is decimal (inotify_fdinfo in the kernel's fs/notify/fdinfo.c).
func parseMarks(text []byte) (out []mark, err error) {
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("inotify ")) {
			continue
		}
		var m mark
		for _, f := range strings.Fields(string(line))[1:] {
			name, value, _ := strings.Cut(f, ":")
			if name == "f_handle" {
				if m.handle, err = hex.DecodeString(value); err != nil {
					return nil, fmt.Errorf("line %q of an inotify instance's fdinfo: %w", line, err)
				}
				continue
			}
			v, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return nil, fmt.Errorf("line %q of an inotify instance's fdinfo: %w", line, err)
			}
			switch name {
			case "wd":
				m.watch.Number = int(v)
			case "ino":
				m.ino = v
			case "sdev": // as the kernel keeps it: 12 bits and 20
				m.dev = unix.Mkdev(uint32(v>>20), uint32(v&0xfffff))
			case "mask":
				m.watch.Mask = uint32(v)
			case "fhandle-type":
				m.typ = int32(v)
			}
		}
		if m.watch.Number <= 0 || m.ino == 0 {
			return nil, fmt.Errorf("line %q of an inotify instance's fdinfo is not understood", line)
		}
		out = append(out, m)
	}
	return out, nil
}

// pathOfMark finds the path of a watched file, or "".
func (c *Capturer) pathOfMark(m *mark) (string, error) {
	shows := func(path string) bool {
		var st unix.Stat_t
		err := unix.Fstatat(c.env.Root, inRoot(path), &st, unix.AT_SYMLINK_NOFOLLOW)
		return err == nil && st.Ino == m.ino && st.Dev == m.dev
	}
	if c.env.PathOf != nil {
		if path, err := c.env.PathOf(m.typ, m.handle); err == nil && shows(path) {
			return path, nil
		} else if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Invalid) {
			return "", err
		}
	}
	for i := range c.descriptions {
		d := &c.descriptions[i]
		if d.stat.Ino != m.ino || d.stat.Dev != m.dev {
			continue
		}
		if path, deleted, err := c.locate(d); err == nil && !deleted && shows(path) {
			return path, nil
		}
	}
	// The sandbox's other file systems, which decode their own handles.
	for _, dir := range []string{"/", "/dev/shm", "/dev", "/tmp", "/run"} {
		var st unix.Stat_t
		if unix.Fstatat(c.env.Root, inRoot(dir), &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != m.dev {
			continue
		}
		if path := c.pathIn(dir, m); path != "" && shows(path) {
			return path, nil
		}
	}
	return "", nil
}

// pathIn has the file system of a directory say what the path of a watched file
// is.
func (c *Capturer) pathIn(dir string, m *mark) string {
	fd, err := openIn(c.env.Root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	if len(m.handle) == 0 {
		return ""
	}
	at, err := unix.OpenByHandleAt(fd, unix.NewFileHandle(m.typ, m.handle), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(at)
	var b [unix.PathMax]byte
	n, err := unix.Readlink(procFD(at), b[:])
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func (inotify) open(*Opened, *image.File) (int, error) { return -1, errLate }

func (inotify) openInside(b *tracee.Batch, f *image.File) tracee.Ref {
	return b.Call(unix.SYS_INOTIFY_INIT1, f.Flags&unix.O_NONBLOCK)
}

// keptMask are the bits of a watch's mask that adding it takes (inotify(7)).
const keptMask = unix.IN_ALL_EVENTS | unix.IN_EXCL_UNLINK | unix.IN_ONESHOT

// read takes unread events out and puts them back.
func (inotify) read(c *Capturer, d *description) (err error) {
	if d.unread == 0 {
		return nil
	}
	if c.scratch == nil {
		if c.scratch, err = events.NewScratch(); err != nil {
			return err
		}
	}
	watches, done, err := watchesOf(c.env.Root, d.file.Marks)
	defer done()
	if err != nil {
		return err
	}
	var happened []events.Event
	err = quietly(d.fd, d.flags, func() (err error) {
		happened, d.file.NextMark, err = c.scratch.Look(d.fd, watches)
		return err
	})
	for _, e := range happened {
		d.file.Happened = append(d.file.Happened, image.Happening{Mark: e.Watch, Mask: e.Mask, Cookie: e.Cookie, Name: []byte(e.Name)})
	}
	return err
}

// quietly does something to an instance while nobody gets signals of it (O_ASYNC), and sets its flags.
func quietly(fd, flags int, f func() error) error {
	set := func(flags int) error {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags&settable); err != nil {
			return fmt.Errorf("flags of an inotify instance: %w", err)
		}
		return nil
	}
	err := set(flags &^ unix.O_ASYNC)
	if err == nil {
		err = f()
	}
	return errors.Join(err, set(flags))
}

// watchesOf opens what is watched below a root, to be closed by done.
func watchesOf(root int, marks []image.Mark) (out []events.Watch, done func(), err error) {
	var open []int
	done = func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}
	for _, m := range marks {
		at, err := openIn(root, m.Path, unix.O_PATH|unix.O_NOFOLLOW)
		if err != nil {
			return nil, done, fmt.Errorf("watch %s: %w", m.Path, err)
		}
		open = append(open, at)
		out = append(out, events.Watch{Number: m.Number, Mask: m.Mask & keptMask, Path: procFD(at)})
	}
	return out, done, nil
}

// watchFiles adds the watches of an instance that a process has made, and its unread events.
func (o *Opened) watchFiles(i int) error {
	f := o.files[i]
	fd, err := o.fetch(i)
	if err != nil {
		return err
	}
	watches, done, err := watchesOf(o.target.Root, f.Marks)
	defer done()
	if err != nil {
		return err
	}
	next := f.NextMark
	for _, m := range f.Marks {
		if f.NextMark == 0 {
			next = max(next, m.Number+1)
		}
	}
	if len(f.Happened) > 0 && o.scratch == nil {
		if o.scratch, err = events.NewScratch(); err != nil {
			return err
		}
	}
	happened := make([]events.Event, len(f.Happened))
	for i, h := range f.Happened {
		happened[i] = events.Event{Watch: h.Mark, Mask: h.Mask, Cookie: h.Cookie, Name: string(h.Name)}
	}
	return quietly(fd, f.Flags, func() error {
		if len(happened) == 0 {
			return events.AddAll(fd, watches, next)
		}
		return o.scratch.Put(fd, happened, watches, next)
	})
}
