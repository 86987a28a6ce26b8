package process

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// sharedObject is one, and a mapping that shows it.
type sharedObject struct {
	sharedKey
	process *liveProcess
	vma     *image.VMA
}

// sharedObjects are the objects that shared mappings without a file show, each once:
// anonymous shared memory, and files that have no name any more.
func (l *Live) sharedObjects() (out []sharedObject) {
	seen := map[sharedKey]bool{}
	for _, p := range l.order {
		for i := range p.memory.VMAs() {
			v := &p.memory.VMAs()[i]
			k := sharedKey{v.Dev, v.Ino}
			if v.Kind == image.SharedAnonymous && !isSegment(v) && !seen[k] {
				seen[k] = true
				out = append(out, sharedObject{k, p, v})
			}
		}
	}
	return out
}

// sharedInArena is how much shared memory of one capture goes into the arena first, in
// bytes: that takes a third of the time of copying it to where it stays. The arena's
// warm part has room for it and for a usual capture.
const sharedInArena = 20 << 20

// sharing copies shared memory in a stop. That needs nothing but the mappings: what no
// descriptor referred to at the last stop is copied beside the reading of descriptors.
type sharing struct {
	objects []sharedObject
	arena   *memory.Arena
	room    int64 // of sharedInArena
	copies  map[sharedKey]*sharedCopy
	early   func() error // waits for what is copied beside
}

// beginShared begins to copy shared memory. Early is to be called in any case.
func (l *Live) beginShared(arena *memory.Arena) *sharing {
	s := &sharing{objects: l.sharedObjects(), arena: arena, room: sharedInArena, copies: map[sharedKey]*sharedCopy{}}
	s.early = func() error { return nil }
	early := slices.DeleteFunc(slices.Clone(s.objects), func(o sharedObject) bool { return !l.undescribed[o.sharedKey] })
	if len(early) > 0 {
		s.early = sync.OnceValue(l.cfg.Beside(func() error {
			for _, o := range early {
				if err := s.copy(o, nil, false); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return s
}

// readShared puts all objects into the tree. Of those that descriptors refer to, too, they
// have the content.
func (l *Live) readShared(c *Capture, s *sharing) error {
	if err := s.early(); err != nil {
		return err
	}
	l.undescribed = make(map[sharedKey]bool, len(s.objects))
	for _, o := range s.objects {
		if s.copies[o.sharedKey] == nil {
			if err := s.copy(o, c.Tree.Files, true); err != nil {
				return err
			}
		}
		k := s.copies[o.sharedKey]
		c.Tree.Shared = append(c.Tree.Shared, k.of)
		if k.describedBy(c.Tree.Files) {
			continue
		}
		l.undescribed[o.sharedKey] = true
		if k.of.FD < 0 {
			c.shared = append(c.shared, k)
		}
	}
	return nil
}

// sharedCopy is an object, and what it holds, if that is in the arena.
type sharedCopy struct {
	of       *image.Shared
	dev, ino uint64 // as fstat(2) gives them
	parts    []part
}

type part struct {
	at   int64
	data []byte
}

// describedBy finds the file that descriptors refer to an object by.
func (k *sharedCopy) describedBy(files []*image.File) bool {
	for _, f := range files {
		if (f.Kind == image.Memfd || f.Kind == image.Regular && f.Deleted) && f.Dev == k.dev && f.Ino == k.ino {
			k.of.Object = f.Object
			return true
		}
	}
	return false
}

// copy copies what is populated of one object that no file has, to the arena, or, if there
// is no room for it and that is wanted, to where it stays.
func (s *sharing) copy(o sharedObject, files []*image.File, whole bool) error {
	p, v := o.process, o.vma
	failed := func(err error) error {
		return fmt.Errorf("copy shared memory at %#x of %s: %w", v.Start, describe(p), err)
	}
	from, err := p.openMapped(v)
	if err != nil {
		return failed(err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return failed(err)
	}
	k := &sharedCopy{of: &image.Shared{Dev: v.Dev, Ino: v.Ino, Size: st.Size, FD: -1, Name: v.Path}, dev: st.Dev, ino: st.Ino}
	switch size := st.Blocks * 512; {
	case k.describedBy(files):
	case size <= s.room && s.arena.Fits(int(size)):
		s.room -= size
		if err := k.read(from, st.Size, s.arena); err != nil {
			return failed(err)
		}
	case !whole:
		return nil
	default:
		if k.of.FD, err = copyFile(from); err != nil {
			return failed(err)
		}
	}
	s.copies[o.sharedKey] = k
	return nil
}

// read reads what an object holds into the arena.
func (k *sharedCopy) read(from int, size int64, arena *memory.Arena) error {
	return eachData(from, size, func(start, end int64) error {
		const page = 4096
		for start < end {
			b, err := arena.Alloc(int(end-start+page-1) &^ (page - 1))
			if err != nil {
				return err
			}
			n, err := unix.Pread(from, b[:min(int64(len(b)), end-start)], start)
			if err == unix.EINTR {
				continue // that part of the arena is lost until it is used next
			}
			if err != nil || n == 0 { // 0: it became shorter
				return err
			}
			k.parts = append(k.parts, part{start, b[:n]})
			start += int64(n)
		}
		return nil
	})
}

// KeepShared moves shared memory from the arena to where the tree has it: to files that
// file returns, and of which it says whether they may have other content. It is to be
// called before the arena is used for something else; the processes may run again.
func (c *Capture) KeepShared(file func(size int64) (fd int, used bool, err error)) error {
	for ; len(c.shared) > 0; c.shared = c.shared[1:] {
		k := c.shared[0]
		fd, used, err := file(k.of.Size)
		if err != nil {
			return fmt.Errorf("keep shared memory: %w", err)
		}
		if err := k.fill(fd, used); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("keep shared memory: %w", err)
		}
		k.of.FD = fd
	}
	return nil
}

// fill writes what an object holds to a file; if that was used, with holes where the object
// has them.
func (k *sharedCopy) fill(fd int, used bool) error {
	end := int64(0)
	hole := func(to int64) error {
		if !used || to <= end {
			return nil
		}
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, to-end)
	}
	for _, part := range k.parts {
		if err := hole(part.at); err != nil {
			return err
		}
		for at := 0; at < len(part.data); {
			n, err := unix.Pwrite(fd, part.data[at:], part.at+int64(at))
			if err != nil && err != unix.EINTR {
				return err
			}
			at += max(n, 0)
		}
		end = part.at + int64(len(part.data))
	}
	return hole(k.of.Size)
}

// MemoryFile makes an anonymous file of a size without content.
func MemoryFile(size int64) (int, error) {
	fd, err := unix.MemfdCreate("copy", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("ftruncate: %w", err)
	}
	return fd, nil
}

// copyFile makes an anonymous file with the content of another one.
func copyFile(from int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return -1, err
	}
	to, err := MemoryFile(st.Size)
	if err != nil {
		return -1, err
	}
	if err := CopyData(to, from, st.Size); err != nil {
		_ = unix.Close(to)
		return -1, err
	}
	return to, nil
}

// CopyData copies the parts of a file that hold data to the same places of
// another one.
func CopyData(to, from int, size int64) error {
	return eachData(from, size, func(start, end int64) error {
		if _, err := unix.Seek(to, start, unix.SEEK_SET); err != nil {
			return err
		}
		for start < end {
			n, err := unix.Sendfile(to, from, &start, int(min(end-start, 1<<30)))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return fmt.Errorf("copy: %w", err)
			}
			if n == 0 {
				return nil // it became shorter
			}
		}
		return nil
	})
}

// eachData calls f with the parts of a file that hold data (lseek(2), SEEK_DATA).
func eachData(fd int, size int64, f func(start, end int64) error) error {
	for at := int64(0); at < size; {
		start, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return fmt.Errorf("seek data: %w", err)
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("seek hole: %w", err)
		}
		if err := f(start, min(end, size)); err != nil {
			return err
		}
		at = end
	}
	return nil
}
