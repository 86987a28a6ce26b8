package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/fsid"
	"github.com/sandtree/sandtree/internal/linux/numbered"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process"
)

// write makes the files anew in a body without processes.
func (m *memoryFiles) write(root int) error {
	for _, s := range m.all() {
		if err := s.write(root); err != nil {
			return err
		}
	}
	return nil
}

func (s *directory) write(root int) error {
	if len(s.entries) == 0 {
		return nil
	}
	return s.in(root, s.writeIn)
}

func (s *directory) writeIn(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return fmt.Errorf("stat /%s of the sandbox: %w", s.at, err)
	}
	if err := s.clear(dir); err != nil {
		return fmt.Errorf("make way in /%s: %w", s.at, err)
	}
	// Its file system is the sandbox's, where this process has no id.
	return fsid.As(int(st.Uid), int(st.Gid), func() error {
		made, err := s.make(dir)
		if err != nil {
			return fmt.Errorf("make the files of /%s: %w", s.at, err)
		}
		for i := range s.entries {
			if err := s.entries[i].write(dir, made); err != nil {
				return fmt.Errorf("make /%s/%s: %w", s.at, s.entries[i].path, err)
			}
		}
		// Those of a directory come last, since what is made in it changes them.
		for i := range s.entries {
			if err := s.entries[i].times(dir); err != nil {
				return fmt.Errorf("set the times of /%s/%s: %w", s.at, s.entries[i].path, err)
			}
		}
		return nil
	})
}

// make makes the files with the numbers that they had, without their names.
func (s *directory) make(dir int) (*numbered.Made, error) {
	var all []numbered.File
	for _, e := range s.entries {
		if e.first == "" && e.stat.Mode != 0 && !e.isDevice() {
			all = append(all, numbered.File{Ino: e.stat.Ino, Mode: e.stat.Mode, Link: e.link})
		}
	}
	return numbered.Make(context.Background(), dir, all)
}

func (e *memoryFile) times(dir int) error {
	times := []unix.Timespec{e.stat.Atim, e.stat.Mtim}
	if e.first != "" || times[0] == (unix.Timespec{}) && times[1] == (unix.Timespec{}) { // of a record that has none
		return nil
	}
	return unix.UtimesNanoAt(dir, e.path, times, unix.AT_SYMLINK_NOFOLLOW)
}

func (e *memoryFile) write(dir int, made *numbered.Made) error {
	if e.stat.Mode == 0 { // it is to be missing
		return nil
	}
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
	case kind == unix.S_IFCHR:
		if err = unix.Mknodat(dir, e.path, kind|0o600, int(e.stat.Rdev)); errors.Is(err, unix.EEXIST) && e.isAt(dir) { // of a new sandbox
			err = nil
		}
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
		unix.Fchmodat(dir, e.path, mode, unix.AT_SYMLINK_NOFOLLOW), // a link would lead to a file of the host
		e.attribute(dir))
}

// attribute gives the file its attributes. Its path below /proc/self/fd could be too long.
func (e *memoryFile) attribute(dir int) error {
	if len(e.attributes) == 0 {
		return nil
	}
	fd, err := unix.Openat(dir, e.path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return xattr.Write(fmt.Sprintf("/proc/self/fd/%d", fd), e.attributes)
}

// isAt reports whether the node is there.
func (e *memoryFile) isAt(dir int) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, e.path, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == e.stat.Rdev
}

func (e *memoryFile) writeFile(dir int, there bool) error {
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
	if e.data >= 0 {
		return process.CopyData(to, e.data, e.stat.Size)
	}
	return writePages(to, e.small)
}

// writePages writes content into an empty file, with holes for pages that are zero.
func writePages(to int, content []byte) error {
	for at := int64(0); len(content) > 0; {
		page := content[:min(len(content), os.Getpagesize())]
		if len(bytes.Trim(page, "\x00")) > 0 {
			if n, err := unix.Pwrite(to, page, at); err != nil || n < len(page) {
				return fmt.Errorf("wrote %d of %d bytes: %w", n, len(page), cmp.Or(err, error(unix.ENOSPC)))
			}
		}
		at, content = at+int64(len(page)), content[len(page):]
	}
	return nil
}
