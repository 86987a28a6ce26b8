// Package numbered makes files with chosen inode numbers, where a file system
// counts.
//
// Programs remember st_ino: SQLite to find its locks, fts(3) to know where it is,
// git to see what changed. btrfs gives a new file of a subvolume the number after the
// last one's, tmpfs that of its mount. So files are made in the order of their numbers, empty
// and under other names, and renamed when their places are there. Numbers between them
// are taken by files without a name.
package numbered

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// MaxPassed is how many numbers are passed over at most; one costs some 30 µs on
// btrfs. What has a number behind more gaps gets another one.
const MaxPassed = 20_000

// File is what a file is made from.
type File struct {
	Ino  uint64
	Mode uint32 // st_mode, of which the type counts
	Rdev uint64 // of a device
	Link string // what a symbolic link holds
}

// Made are files that were made and have no place yet.
type Made struct {
	root   int
	prefix string          // of the names; no other file has one like it
	files  map[uint64]bool // by number asked for
	last   uint64          // number that was given
	passed int
}

// Make makes files in a directory of a file system in which nobody else makes
// any meanwhile. Those that cannot have their numbers are left out, as all are on other file systems than
// btrfs and tmpfs. Of an error files may be left.
func Make(ctx context.Context, root int, files []File) (*Made, error) {
	m := &Made{root: root, prefix: "numbered-" + rand.Text() + "-", files: map[uint64]bool{}}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(root, &fs); err != nil {
		return nil, fmt.Errorf("ask for the file system: %w", err)
	}
	if counts := fs.Type == unix.BTRFS_SUPER_MAGIC || fs.Type == unix.TMPFS_MAGIC; !counts || len(files) == 0 {
		return m, nil
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return cmp.Compare(a.Ino, b.Ino) })
	if err := m.begin(files[0]); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return nil, fault.New(fault.Canceled, "%w", err)
		}
		if f.Ino <= m.last { // or made to begin with
			continue
		}
		if ok, err := m.reach(f.Ino); err != nil || !ok {
			return m, err
		}
		if err := m.make(f); err != nil {
			return nil, fmt.Errorf("make file %d: %w", f.Ino, err)
		}
		if m.last != f.Ino { // it will do, and the others would be like it
			return m, nil
		}
	}
	return m, nil
}

// begin makes the first file, and so learns what number comes next. One that has
// another number than it should goes again.
func (m *Made) begin(f File) error {
	err := m.make(f)
	if err == nil && m.last != f.Ino {
		flags := 0
		if f.Mode&unix.S_IFMT == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
		}
		delete(m.files, f.Ino)
		err = unix.Unlinkat(m.root, m.name(f.Ino), flags)
	}
	if err != nil {
		return fmt.Errorf("make file %d: %w", f.Ino, err)
	}
	return nil
}

// reach passes numbers over until a file's would be the next. It is false if
// that cannot be.
func (m *Made) reach(ino uint64) (bool, error) {
	if ino-m.last > MaxPassed {
		return false, nil
	}
	for m.last+1 < ino {
		before := m.last
		if m.passed++; m.passed > MaxPassed {
			return false, nil
		}
		if err := m.pass(); err != nil {
			return false, err
		}
		if m.last != before+1 {
			return false, nil
		}
	}
	return true, nil
}

// pass takes the next number away.
func (m *Made) pass() error {
	fd, err := unix.Openat(m.root, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make a file without a name: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	m.last = st.Ino
	return errors.Join(err, unix.Close(fd))
}

// make makes a file with the next number.
func (m *Made) make(f File) (err error) {
	name := m.name(f.Ino)
	switch kind := f.Mode & unix.S_IFMT; kind {
	case unix.S_IFDIR:
		err = unix.Mkdirat(m.root, name, 0o700)
	case unix.S_IFLNK:
		err = unix.Symlinkat(f.Link, m.root, name)
	default:
		err = unix.Mknodat(m.root, name, kind|0o600, int(f.Rdev))
	}
	if err != nil {
		return err
	}
	m.files[f.Ino] = true
	var st unix.Stat_t
	if err := unix.Fstatat(m.root, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	m.last = st.Ino
	return nil
}

func (m *Made) name(ino uint64) string { return m.prefix + strconv.FormatUint(ino, 10) }

// Place gives a file its place and name, if it was made; nothing may be there. It is
// false if it was not.
func (m *Made) Place(ino uint64, dir int, name string) (bool, error) {
	if !m.files[ino] {
		return false, nil
	}
	delete(m.files, ino)
	return true, unix.Renameat2(m.root, m.name(ino), dir, name, unix.RENAME_NOREPLACE)
}
