package upper

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/numbered"
)

// Restore makes the files in an empty directory that nobody else uses, and gives
// the directory itself the root's attributes. A manifest that was not made by
// Capture does no harm outside of the directory.
func (m *Manifest) Restore(ctx context.Context, g content.Getter, dir int) error {
	own, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the root: %w", err)
	}
	f := os.NewFile(uintptr(own), "root")
	defer f.Close()
	if names, _ := f.Readdirnames(1); len(names) > 0 {
		return fault.New(fault.Conflict, "the directory to restore files into is not empty")
	}
	r := &restore{ctx: ctx, g: g, root: own, dirs: map[uint64]*Entry{}}
	defer r.path.close()
	if r.made, err = m.make(ctx, g, own); err != nil {
		return err
	}
	if err := m.Each(g, nil, r.entry); err != nil {
		return err
	}
	if len(r.path) == 0 {
		return fmt.Errorf("%w: a tree without a root", chunk.ErrCorrupt)
	}
	for len(r.path) > 0 {
		if err := r.leave(); err != nil {
			return err
		}
	}
	return nil
}

// make makes nearly all files of a manifest, with the numbers that they had,
// empty and without their names.
func (m *Manifest) make(ctx context.Context, g content.Getter, root int) (*numbered.Made, error) {
	var (
		all  []numbered.File
		seen = map[uint64]bool{}
	)
	err := m.Each(g, nil, func(e *Entry) error {
		if !e.Again && e.Dir != 0 && !seen[e.Ino] {
			seen[e.Ino] = true
			all = append(all, numbered.File{Ino: e.Ino, Mode: e.Mode, Rdev: e.Rdev, Link: e.Link})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return numbered.Make(ctx, root, all)
}

type restore struct {
	ctx   context.Context
	g     content.Getter
	root  int
	made  *numbered.Made // files with the numbers that they had
	path  frames
	order order
	dirs  map[uint64]*Entry // on the path
}

// entry makes one file.
func (r *restore) entry(e *Entry) error {
	if err := r.ctx.Err(); err != nil {
		return fault.New(fault.Canceled, "%w", err)
	}
	left, err := r.order.next(e)
	if err != nil {
		return err
	}
	if e.Dir == 0 {
		r.path = frames{{e.Ino, r.root}}
		r.dirs[e.Ino] = e
		return nil
	}
	for range left {
		if err := r.leave(); err != nil {
			return err
		}
	}
	if err := r.create(r.path.top().fd, e); err != nil {
		return fmt.Errorf("make file %q: %w", e.Name, err)
	}
	return nil
}

func (r *restore) create(dir int, e *Entry) error {
	if e.Again {
		return r.linkAgain(dir, e)
	}
	there, err := r.made.Place(e.Ino, dir, e.Name)
	if err != nil {
		return err
	}
	switch kind := e.Mode & unix.S_IFMT; kind {
	case unix.S_IFDIR:
		if !there {
			if err := unix.Mkdirat(dir, e.Name, 0o700); err != nil {
				return err
			}
		}
		fd, err := unix.Openat(dir, e.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		r.path.push(e.Ino, fd)
		r.dirs[e.Ino] = e // its attributes come when it is left
		return nil
	case unix.S_IFREG:
		return r.file(dir, e, there)
	case unix.S_IFLNK:
		if !there {
			err = unix.Symlinkat(e.Link, dir, e.Name)
		}
	default:
		if !there {
			err = unix.Mknodat(dir, e.Name, kind|0o600, int(e.Rdev))
		}
	}
	if err != nil {
		return err
	}
	return r.attributes(dir, e.Name, e)
}

func (r *restore) file(dir int, e *Entry, there bool) error {
	flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !there {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := unix.Openat(dir, e.Name, flags, 0o600)
	if err != nil {
		return err
	}
	err = e.Content.Restore(r.ctx, r.g, fd)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return err
	}
	return r.attributes(dir, e.Name, e)
}

// attributes gives a file what it had. The order matters: a change of owner
// takes setuid bits and capabilities away.
func (r *restore) attributes(dir int, at string, e *Entry) error {
	if err := unix.Fchownat(dir, at, int(e.UID), int(e.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the owner: %w", err)
	}
	if e.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Fchmodat(dir, at, e.Mode&0o7777, 0); err != nil {
			return fmt.Errorf("set the mode: %w", err)
		}
	}
	xattrs := e.Xattrs
	if e.XattrsIn != nil {
		b, err := e.XattrsIn.All(r.g, 2*maxXattrs)
		if err == nil {
			err = cbor.Unmarshal(b, &xattrs)
		}
		if err != nil {
			return fmt.Errorf("attributes: %w", err)
		}
	}
	for name, v := range xattrs {
		if err := unix.Lsetxattr(entryPath(dir, at), name, v, 0); err != nil {
			return fmt.Errorf("set attribute %.100q: %w", name, err)
		}
	}
	times := []unix.Timespec{e.Accessed.timespec(), e.Modified.timespec()}
	if err := unix.UtimesNanoAt(dir, at, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// leave gives the directory that the walk is in its attributes and goes up.
func (r *restore) leave() error {
	top := r.path.top()
	e := r.dirs[top.ino]
	delete(r.dirs, top.ino)
	if err := r.attributes(top.fd, ".", e); err != nil {
		return fmt.Errorf("directory %q: %w", e.Name, err)
	}
	if len(r.path) == 1 {
		r.path = nil
		return nil
	}
	return r.path.pop()
}

// linkAgain gives a file a further name.
func (r *restore) linkAgain(dir int, e *Entry) error {
	first := r.order.names[e.Ino]
	from, done, err := r.open(first.dir)
	if err != nil {
		return err
	}
	defer done()
	return unix.Linkat(from, first.name, dir, e.Name, 0)
}

// open opens a directory by its number: one on the path as it is, others by
// walking down from the root.
func (r *restore) open(ino uint64) (fd int, done func(), err error) {
	for _, f := range r.path {
		if f.ino == ino && f.fd >= 0 {
			return f.fd, func() {}, nil
		}
	}
	var down []string
	for at := ino; r.order.names[at].dir != 0; at = r.order.names[at].dir {
		down = append(down, r.order.names[at].name)
	}
	fd = r.root
	for i := len(down) - 1; i >= 0; i-- {
		next, err := unix.Openat(fd, down[i], unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if fd != r.root {
			_ = unix.Close(fd)
		}
		if err != nil {
			return -1, nil, err
		}
		fd = next
	}
	if fd == r.root {
		return fd, func() {}, nil
	}
	return fd, func() { _ = unix.Close(fd) }, nil
}
