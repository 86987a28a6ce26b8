package inotify

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maker makes events in one instance.
type maker struct {
	scratch *Scratch
	fd      int
	places  map[int]*place // by the number of the watch
	junk    int            // number of the watch of the junk file
	rest    int            // how many events of the filling are read when the queue has overflowed
}

// place is a watched file in the scratch.
type place struct {
	number int
	name   string
	dir    bool
	mask   uint32
}

// quiet is a mask that no event passes, in a form that the kernel takes.
const quiet = unix.IN_EXCL_UNLINK

func (m *maker) make(p step) error {
	if p.do == overflowQueue {
		return errors.Join(m.scratch.litter(1), discard(m.fd, m.rest, m.scratch.buf))
	}
	e := &p.made[0]
	at, err := m.place(e.Watch, p.dir)
	if err != nil {
		return err
	}
	switch p.do {
	case dropWatch:
		err = m.drop(at)
	case deleteFile:
		if err = m.listen(at, unix.IN_DELETE_SELF); err == nil {
			err = m.scratch.unlink(at.name, at.dir)
		}
		if err == nil {
			m.forget(at)
		}
	case moveFile:
		err = m.rename(at, &p)
	default:
		err = m.touch(at, e)
	}
	if err != nil {
		return fmt.Errorf("make the event %+v of inotify again: %w", *e, err)
	}
	return nil
}

// place gives the file that the watch with a number is of, which it makes and watches when it is first
// asked for.
func (m *maker) place(number int, dir bool) (*place, error) {
	if p := m.places[number]; p != nil {
		return p, nil
	}
	p := &place{number: number, name: m.scratch.name(), dir: dir, mask: quiet}
	if err := m.scratch.create(p.name, dir); err != nil {
		return nil, err
	}
	if err := Add(m.fd, Watch{number, p.mask, m.scratch.path + p.name}); err != nil {
		return nil, errors.Join(err, m.scratch.unlink(p.name, dir))
	}
	m.places[number] = p
	return p, nil
}

func (m *maker) forget(p *place) { m.places[p.number] = nil }

// listen sets what is told of a place.
func (m *maker) listen(p *place, mask uint32) error {
	if p.mask == mask {
		return nil
	}
	if _, err := unix.InotifyAddWatch(m.fd, m.scratch.path+p.name, mask); err != nil {
		return err
	}
	p.mask = mask
	return nil
}

// drop removes a watch and its file.
func (m *maker) drop(p *place) error {
	m.forget(p)
	return errors.Join(remove(m.fd, p.number), m.scratch.unlink(p.name, p.dir))
}

// leave removes all watches.
func (m *maker) leave() (err error) {
	for _, p := range m.places {
		if p != nil {
			err = errors.Join(err, m.drop(p))
		}
	}
	return errors.Join(err, remove(m.fd, m.junk))
}

// rename moves a file from one watched directory to another, or within one.
func (m *maker) rename(from *place, p *step) error {
	a, b := &p.made[0], &p.made[1]
	to, err := m.place(b.Watch, true)
	if err != nil {
		return err
	}
	if from == to {
		err = m.listen(from, unix.IN_MOVE)
	} else {
		err = errors.Join(m.listen(from, unix.IN_MOVED_FROM), m.listen(to, unix.IN_MOVED_TO))
	}
	return errors.Join(err, m.scratch.pass(from.name+"/"+a.Name, to.name+"/"+b.Name, a.Mask&unix.IN_ISDIR != 0))
}

// touch does something to a watched file, or to one in a watched directory. Only what is to be told of
// is listened for, and nothing else that is done on the way is of that kind.
func (m *maker) touch(p *place, e *Event) error {
	s, what, dir := m.scratch, e.Mask&^unix.IN_ISDIR, e.Mask&unix.IN_ISDIR != 0
	if err := m.listen(p, what); err != nil {
		return err
	}
	target, away := p.name+"/"+e.Name, awayName+"/"+p.name
	switch {
	case what == unix.IN_MOVE_SELF:
		name := s.name()
		if err := s.rename(p.name, name); err != nil {
			return err
		}
		p.name = name
		return nil
	case what == unix.IN_MOVED_FROM:
		return s.pass(target, away, dir)
	case what == unix.IN_MOVED_TO:
		return s.pass(away, target, dir)
	case e.Name == "":
		return s.use(p.name, what, p.dir)
	}
	if err := s.create(target, dir); err != nil {
		return err
	}
	var err error
	if what&(unix.IN_CREATE|unix.IN_DELETE) == 0 {
		err = s.use(target, what, dir)
	}
	return errors.Join(err, s.unlink(target, dir))
}

// use does to a file what is none of its directory's business.
func (s *Scratch) use(target string, what uint32, dir bool) (err error) {
	switch what {
	case unix.IN_ATTRIB:
		return unix.Fchmodat(s.root, target, 0o700, 0)
	case unix.IN_MODIFY | unix.IN_ATTRIB:
		return s.shorten(target)
	}
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if dir || what == unix.IN_CLOSE_NOWRITE {
		flags = unix.O_RDONLY | unix.O_CLOEXEC
	}
	fd, err := unix.Openat(s.root, target, flags, 0)
	if err != nil {
		return err
	}
	b := s.buf[:1]
	switch {
	case what == unix.IN_ACCESS && dir:
		_, err = unix.Getdents(fd, s.buf)
	case what == unix.IN_ACCESS:
		if _, err = unix.Pwrite(fd, b, 0); err == nil {
			_, err = unix.Pread(fd, b, 0)
		}
	case what == unix.IN_MODIFY:
		_, err = unix.Pwrite(fd, b, 0)
	}
	return errors.Join(err, unix.Close(fd))
}

// shorten cuts a file that has the set-user-id bit, as somebody who loses it by that: the kernel tells of both in
// one event.
func (s *Scratch) shorten(target string) error {
	fd, err := unix.Openat(s.root, target, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	const stranger = 1 // any id but root's: the capabilities over files go with it (capabilities(7))
	if err := unix.Fchmodat(s.root, target, unix.S_ISUID|0o777, 0); err != nil {
		return err
	}
	_, err = unix.SetfsuidRetUid(stranger)
	err = errors.Join(err, unix.Ftruncate(fd, 0))
	_, e := unix.SetfsuidRetUid(0)
	return errors.Join(err, e)
}

// pass makes a file and moves it.
func (s *Scratch) pass(from, to string, dir bool) error {
	if err := s.create(from, dir); err != nil {
		return err
	}
	if err := s.rename(from, to); err != nil {
		return errors.Join(err, s.unlink(from, dir))
	}
	return s.unlink(to, dir)
}

func (s *Scratch) create(path string, dir bool) error {
	if dir {
		return unix.Mkdirat(s.root, path, 0o700)
	}
	return unix.Mknodat(s.root, path, unix.S_IFREG|0o600, 0)
}

func (s *Scratch) unlink(path string, dir bool) error {
	flags := 0
	if dir {
		flags = unix.AT_REMOVEDIR
	}
	return unix.Unlinkat(s.root, path, flags)
}

func (s *Scratch) rename(from, to string) error { return unix.Renameat(s.root, from, s.root, to) }
