package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process"
)

// memoryFiles are what file systems that are memory hold, which is in no snapshot of
// files. Ids are the host's.
type memoryFiles struct {
	shm directory // /dev/shm
	dev directory // what of /dev is not as in a new sandbox
}

// directory is what one of them holds.
type directory struct {
	at      string // from the root
	entries []memoryFile
	held    int64 // bytes of small ones

	attributed int64 // bytes of attributes
}

// memoryFile is a file of one, parents before what is in them.
type memoryFile struct {
	path  string // relative
	stat  unix.Stat_t
	link  string
	small []byte // a file's content, if it is small
	data  int    // descriptor of the content of another, or -1: it has none, whatever its size
	first string // of another name of the same file

	attributes []xattr.Attribute
}

const (
	maxMemoryFiles = 10_000
	mostAttributed = 4 << 20 // bytes of attributes in a directory: they are in the supervisor's memory, and a record has them whole
)

// Small files are held as bytes, up to so many in a directory: a descriptor each would be one of
// the supervisor's, of which all sandboxes of a template have a part, and takes longer.
const (
	smallFile  = 16 << 10
	smallFiles = 4 << 20 // a record has them whole, once more in each
)

func newMemoryFiles() *memoryFiles {
	return &memoryFiles{shm: directory{at: "dev/shm"}, dev: directory{at: "dev"}}
}

// readMemoryFiles copies those of a stopped sandbox, whose root has the given id on the host.
func readMemoryFiles(root int, owner uint32) (_ *memoryFiles, err error) {
	m := newMemoryFiles()
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	err = m.shm.in(root, func(dir int) error { return m.shm.read(dir, "", map[uint64]string{}) })
	if err == nil {
		err = m.dev.in(root, func(dir int) error { return m.dev.readChanged(dir, owner) })
	}
	return m, err
}

// in calls f with the directory, open.
func (s *directory) in(root int, f func(dir int) error) error {
	fd, err := unix.Openat2(root, s.at, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return fmt.Errorf("open /%s of the sandbox: %w", s.at, err)
	}
	defer unix.Close(fd)
	return f(fd)
}

func (s *directory) read(dir int, at string, seen map[uint64]string) error {
	names, err := readNames(dir)
	if err != nil {
		return fmt.Errorf("read /%s/%s: %w", s.at, at, err)
	}
	for _, name := range names {
		e, err := s.look(dir, at, name)
		if err == nil {
			err = s.add(dir, name, e, seen)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// look finds out what a name stands for.
func (s *directory) look(dir int, at, name string) (memoryFile, error) {
	e := memoryFile{path: filepath.Join(at, name), data: -1}
	if len(e.path) >= unix.PathMax {
		return e, fault.New(fault.Uncapturable, "/%s has a file whose path is longer than the %d bytes that one can be made by", s.at, unix.PathMax-1).
			WithHint("move or remove it, then try again")
	}
	if err := unix.Fstatat(dir, name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return e, fmt.Errorf("stat /%s/%s: %w", s.at, e.path, err)
	}
	if e.stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		buf := make([]byte, e.stat.Size+1)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil {
			return e, fmt.Errorf("read link /%s/%s: %w", s.at, e.path, err)
		}
		e.link = string(buf[:n])
	}
	return e, nil
}

// add adds a file with its content, and with what is in it.
func (s *directory) add(dir int, name string, e memoryFile, seen map[uint64]string) (err error) {
	if len(s.entries) == maxMemoryFiles {
		return fault.New(fault.Uncapturable, "/%s has more than %d files", s.at, maxMemoryFiles)
	}
	sub := -1
	switch e.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if first, ok := seen[e.stat.Ino]; ok {
			e.first = first
			break
		}
		if e.attributes, err = s.attributes(dir, name, e.path); err != nil {
			return err
		}
		seen[e.stat.Ino] = e.path
		if e.stat.Blocks == 0 { // it takes no descriptor for as long as the checkpoint is
			break
		}
		if e.stat.Size <= smallFile && s.held+e.stat.Size <= smallFiles {
			e.small, err = smallContent(dir, name, e.stat.Size)
			s.held += e.stat.Size
		} else {
			e.data, err = copyContent(dir, name, e.stat.Size)
		}
		if err != nil {
			return s.copyError(&e, err)
		}
	case unix.S_IFDIR:
		if sub, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open /%s/%s: %w", s.at, e.path, err)
		}
		defer unix.Close(sub)
		fallthrough
	default:
		if e.attributes, err = s.attributes(dir, name, e.path); err != nil {
			return err
		}
	}
	s.entries = append(s.entries, e)
	if sub >= 0 {
		return s.read(sub, e.path, seen)
	}
	return nil
}

// attributes reads those of a file of an open directory; links have none.
func (s *directory) attributes(dir int, name, path string) ([]xattr.Attribute, error) {
	as, err := xattr.Read(fmt.Sprintf("/proc/self/fd/%d/%s", dir, name))
	if err != nil {
		return nil, fmt.Errorf("attributes of /%s/%s: %w", s.at, path, err)
	}
	if s.attributed += xattr.Size(as); s.attributed > mostAttributed {
		return nil, fault.New(fault.Uncapturable, "the files of /%s have more than %d MiB of extended attributes", s.at, mostAttributed>>20).
			WithHint("remove some of them (setfattr -x)")
	}
	return as, nil
}

func (s *directory) copyError(e *memoryFile, err error) error {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return fault.New(fault.Exhausted, "copy /%s/%s: %w", s.at, e.path, err).
			WithHint("remove checkpoints or files there, or raise the limit of open files of the daemon (LimitNOFILE)")
	}
	return fmt.Errorf("copy /%s/%s: %w", s.at, e.path, err)
}

func readNames(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "memory")
	defer f.Close()
	return f.Readdirnames(-1)
}

// openContent opens a file without waiting: for who has a lease on it, say (fcntl(2)).
func openContent(dir int, name string) (int, error) {
	return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func smallContent(dir int, name string, size int64) ([]byte, error) {
	from, err := openContent(dir, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(from)
	b := make([]byte, size)
	n, err := unix.Pread(from, b, 0) // of memory, which comes whole
	return b[:max(n, 0)], err
}

func copyContent(dir int, name string, size int64) (int, error) {
	from, err := openContent(dir, name)
	if err != nil {
		return -1, err
	}
	defer unix.Close(from)
	to, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if err = unix.Ftruncate(to, size); err == nil {
		err = process.CopyData(to, from, size)
	}
	if err != nil {
		_ = unix.Close(to)
		return -1, err
	}
	return to, nil
}

func (m *memoryFiles) close() {
	if m == nil {
		return
	}
	for _, s := range m.all() {
		for _, e := range s.entries {
			if e.data >= 0 {
				_ = unix.Close(e.data)
			}
		}
		s.entries, s.held, s.attributed = nil, 0, 0
	}
}

func (m *memoryFiles) all() []*directory { return []*directory{&m.dev, &m.shm} }

// weigh is what their content and attributes take, in bytes.
func (m *memoryFiles) weigh() (n int64) {
	for _, s := range m.all() {
		n += s.held + s.attributed
		for i := range s.entries {
			if e := &s.entries[i]; e.data >= 0 {
				n += heldBy(e.data)
			}
		}
	}
	return n
}
