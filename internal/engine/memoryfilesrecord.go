package engine

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/sandbox"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// record is a directory as a record has it. keep notes files that are to be closed.
func (s *directory) record(keep func(*os.File, error) (*os.File, error)) (out []worker.MemoryFile, err error) {
	for _, e := range s.entries {
		f := worker.MemoryFile{
			Path: e.path, Mode: e.stat.Mode, UID: e.stat.Uid, GID: e.stat.Gid, Size: e.stat.Size, Link: e.link, First: e.first,
			Ino: e.stat.Ino, Rdev: e.stat.Rdev, Content: e.small, Accessed: e.stat.Atim, Modified: e.stat.Mtim, Attributes: e.attributes,
		}
		if e.data >= 0 {
			fd, err := unix.FcntlInt(uintptr(e.data), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, fmt.Errorf("duplicate a descriptor: %w", err)
			}
			if f.Data, err = keep(os.NewFile(uintptr(fd), "memory"), nil); err != nil {
				return nil, err
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// memoryFilesOf are the files that a record has. It takes their content over. A record may be
// anybody's: of one that no sandbox can have had it makes nothing.
func memoryFilesOf(s *worker.State) (*memoryFiles, error) {
	m := newMemoryFiles()
	err := errors.Join(m.shm.take(s.Shm), m.dev.take(s.Dev))
	for _, d := range m.all() {
		if err == nil {
			err = d.check()
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (s *directory) take(files []worker.MemoryFile) (failed error) {
	for _, f := range files {
		e := memoryFile{path: f.Path, link: f.Link, first: f.First, small: f.Content, data: -1, attributes: f.Attributes}
		s.held += int64(len(f.Content))
		s.attributed += xattr.Size(f.Attributes)
		e.stat.Mode, e.stat.Uid, e.stat.Gid, e.stat.Size = f.Mode, f.UID, f.GID, f.Size
		e.stat.Ino, e.stat.Rdev, e.stat.Atim, e.stat.Mtim = f.Ino, f.Rdev, f.Accessed, f.Modified
		if f.Data != nil {
			fd, err := unix.FcntlInt(f.Data.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err == nil {
				e.data = fd
			} else if failed == nil {
				failed = s.copyError(&e, err)
			}
			_ = f.Data.Close()
		}
		s.entries = append(s.entries, e)
	}
	return failed
}

// check holds every name to be in the directory itself or in one before it, since a symbolic
// link on the way would lead to files of the host.
func (s *directory) check() error {
	kinds, numbers := map[string]uint32{".": unix.S_IFDIR}, map[uint64]bool{}
	for i := range s.entries {
		e := &s.entries[i]
		kind := e.stat.Mode & unix.S_IFMT
		_, there := kinds[e.path]
		switch {
		case !filepath.IsLocal(e.path) || path.Clean(e.path) != e.path || kinds[path.Dir(e.path)] != unix.S_IFDIR:
			return fault.New(fault.Invalid, "it has a file %q in /%s whose directory it has not", e.path, s.at)
		case there:
			return fault.New(fault.Invalid, "it has the file %q in /%s twice", e.path, s.at)
		case e.first != "" && (kinds[e.first] != unix.S_IFREG || kind != unix.S_IFREG):
			return fault.New(fault.Invalid, "it has a file %q in /%s that is another name of one that it has not (%q)", e.path, s.at, e.first)
		case kind == unix.S_IFBLK || e.isDevice() && e.stat.Rdev != 0 && !slices.ContainsFunc(sandbox.Devices(), func(d sandbox.Device) bool { return d.Rdev == e.stat.Rdev }):
			return fault.New(fault.Invalid, "it has a device %q in /%s that no sandbox has", e.path, s.at)
		case int64(len(e.small)) > e.stat.Size || len(e.small) > 0 && (kind != unix.S_IFREG || e.first != "" || e.data >= 0):
			return fault.New(fault.Invalid, "it has a file %q in /%s with %d bytes that are not its", e.path, s.at, len(e.small))
		case e.first == "" && numbers[e.stat.Ino]: // files are made by their numbers, so one would be put in the other's place
			return fault.New(fault.Invalid, "it has a file %q in /%s with the number of another (%d)", e.path, s.at, e.stat.Ino)
		}
		kinds[e.path] = kind
		if e.stat.Ino != 0 { // records of older versions have none
			numbers[e.stat.Ino] = true
		}
	}
	return nil
}
