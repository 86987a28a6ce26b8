package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/fsid"
	"github.com/sandtree/sandtree/internal/linux/numbered"
	"github.com/sandtree/sandtree/internal/process"
)

// shm is the content of /dev/shm, which is memory and in no snapshot of files.
// Ids are the host's.
type shm struct{ entries []shmEntry }

type shmEntry struct {
	path  string // relative
	stat  unix.Stat_t
	link  string
	data  int    // descriptor of a file's content, or -1
	first string // of another name of the same file
}

const maxShmEntries = 10_000

// readShm copies /dev/shm of a stopped sandbox.
func readShm(root int) (_ *shm, err error) {
	s := &shm{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	dir, err := openShm(root)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	seen := map[uint64]string{}
	return s, s.read(dir, "", seen)
}

func openShm(root int) (int, error) {
	fd, err := unix.Openat2(root, "dev/shm", &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open /dev/shm of the sandbox: %w", err)
	}
	return fd, nil
}

func (s *shm) read(dir int, at string, seen map[uint64]string) error {
	names, err := readNames(dir)
	if err != nil {
		return fmt.Errorf("read /dev/shm/%s: %w", at, err)
	}
	for _, name := range names {
		if len(s.entries) == maxShmEntries {
			return fault.New(fault.Uncapturable, "/dev/shm has more than %d files", maxShmEntries)
		}
		e := shmEntry{path: filepath.Join(at, name), data: -1}
		if err := unix.Fstatat(dir, name, &e.stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("stat /dev/shm/%s: %w", e.path, err)
		}
		sub := -1
		switch e.stat.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if first, ok := seen[e.stat.Ino]; ok {
				e.first = first
				break
			}
			seen[e.stat.Ino] = e.path
			if e.data, err = copyContent(dir, name, e.stat.Size); err != nil {
				return fmt.Errorf("copy /dev/shm/%s: %w", e.path, err)
			}
		case unix.S_IFLNK:
			buf := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(dir, name, buf)
			if err != nil {
				return fmt.Errorf("read link /dev/shm/%s: %w", e.path, err)
			}
			e.link = string(buf[:n])
		case unix.S_IFDIR:
			if sub, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
				return fmt.Errorf("open /dev/shm/%s: %w", e.path, err)
			}
		}
		s.entries = append(s.entries, e)
		if sub >= 0 {
			err := s.read(sub, e.path, seen)
			_ = unix.Close(sub)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func readNames(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "shm")
	defer f.Close()
	return f.Readdirnames(-1)
}

func copyContent(dir int, name string, size int64) (int, error) {
	from, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(from)
	to, err := unix.MemfdCreate("shm", unix.MFD_CLOEXEC)
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

// write makes the content anew in a body without processes.
func (s *shm) write(root int) error {
	if len(s.entries) == 0 {
		return nil
	}
	dir, err := openShm(root)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return fmt.Errorf("stat /dev/shm of the sandbox: %w", err)
	}
	// Its file system is the sandbox's, where this process has no id.
	return fsid.As(int(st.Uid), int(st.Gid), func() error {
		made, err := s.make(dir)
		if err != nil {
			return fmt.Errorf("make the files of /dev/shm: %w", err)
		}
		for i := range s.entries {
			if err := s.entries[i].write(dir, made); err != nil {
				return fmt.Errorf("make /dev/shm/%s: %w", s.entries[i].path, err)
			}
		}
		// Those of a directory come last, since what is made in it changes them.
		for i := range s.entries {
			if err := s.entries[i].times(dir); err != nil {
				return fmt.Errorf("set the times of /dev/shm/%s: %w", s.entries[i].path, err)
			}
		}
		return nil
	})
}

// make makes the files with the numbers that they had, without their names.
func (s *shm) make(dir int) (*numbered.Made, error) {
	var all []numbered.File
	for _, e := range s.entries {
		if e.first == "" {
			all = append(all, numbered.File{Ino: e.stat.Ino, Mode: e.stat.Mode, Link: e.link})
		}
	}
	return numbered.Make(context.Background(), dir, all)
}

func (e *shmEntry) times(dir int) error {
	times := []unix.Timespec{e.stat.Atim, e.stat.Mtim}
	if e.first != "" || times[0] == (unix.Timespec{}) && times[1] == (unix.Timespec{}) { // of a record that has none
		return nil
	}
	return unix.UtimesNanoAt(dir, e.path, times, unix.AT_SYMLINK_NOFOLLOW)
}

func (e *shmEntry) write(dir int, made *numbered.Made) error {
	if e.first != "" {
		return unix.Linkat(dir, e.first, dir, e.path, 0)
	}
	mode := e.stat.Mode & 0o7777
	there, err := made.Place(e.stat.Ino, dir, e.path)
	if err != nil {
		return err
	}
	switch kind := e.stat.Mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		if !there {
			err = unix.Symlinkat(e.link, dir, e.path)
		}
		if err != nil {
			return err
		}
		return unix.Fchownat(dir, e.path, int(e.stat.Uid), int(e.stat.Gid), unix.AT_SYMLINK_NOFOLLOW)
	case kind == unix.S_IFREG:
		err = e.writeFile(dir, there)
	case there:
	case kind == unix.S_IFDIR:
		err = unix.Mkdirat(dir, e.path, 0o700)
	default: // FIFOs and sockets
		err = unix.Mknodat(dir, e.path, kind|0o600, 0)
	}
	if err != nil {
		return err
	}
	return errors.Join(
		unix.Fchownat(dir, e.path, int(e.stat.Uid), int(e.stat.Gid), unix.AT_SYMLINK_NOFOLLOW),
		unix.Fchmodat(dir, e.path, mode, 0))
}

func (e *shmEntry) writeFile(dir int, there bool) error {
	flags := unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !there {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	to, err := unix.Openat(dir, e.path, flags, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := unix.Ftruncate(to, e.stat.Size); err != nil {
		return err
	}
	return process.CopyData(to, e.data, e.stat.Size)
}

func (s *shm) close() {
	if s == nil {
		return
	}
	for _, e := range s.entries {
		if e.data >= 0 {
			_ = unix.Close(e.data)
		}
	}
	s.entries = nil
}
