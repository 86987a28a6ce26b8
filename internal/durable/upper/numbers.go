package upper

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/fault"
)

// maxPassed is how many numbers are passed over at most, some 30 µs each. What
// has a number behind more gaps gets another one.
const maxPassed = 20_000

// numbering makes files with the numbers that they had: programs remember them,
// as SQLite to find its locks and git to see what changed.
//
// btrfs gives a new file of a subvolume the number after the last one's. So all are made
// in the order of their numbers, empty and under other names; numbers between them are taken
// by files without a name. Where a file system numbers otherwise, or has given
// a number out already, a file gets another one.
type numbering struct {
	root   int
	prefix string          // of the names; no file of the tree has one like it
	made   map[uint64]bool // by number in the manifest
	last   uint64          // number that was given
	passed int
}

// numbered is what a file is made from.
type numbered struct {
	ino, rdev uint64
	kind      uint32
	link      string
}

// number makes the files of a manifest in a directory, nearly all of them.
func (m *Manifest) number(ctx context.Context, g content.Getter, root int) (*numbering, error) {
	n := &numbering{root: root, prefix: "numbered-" + rand.Text() + "-", made: map[uint64]bool{}}
	var all []numbered
	err := m.Each(g, nil, func(e *Entry) error {
		if !e.Again && e.Dir != 0 {
			all = append(all, numbered{e.Ino, e.Rdev, e.Mode & unix.S_IFMT, e.Link})
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		return n, err
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.ino, b.ino) })
	switch err := n.pass(); {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR):
		return n, nil // the file system has no such files
	case err != nil:
		return nil, err
	}
	for _, f := range all {
		if err := ctx.Err(); err != nil {
			return nil, fault.New(fault.Canceled, "%w", err)
		}
		if f.ino <= n.last || n.made[f.ino] {
			continue
		}
		if ok, err := n.reach(f.ino); err != nil || !ok {
			return n, err
		}
		if err := n.make(f); err != nil {
			return nil, fmt.Errorf("make file %d: %w", f.ino, err)
		}
		if n.last != f.ino { // it does for a file, and so would the others
			return n, nil
		}
	}
	return n, nil
}

// reach passes numbers over until a file's would be the next. It is false if
// that cannot be.
func (n *numbering) reach(ino uint64) (bool, error) {
	if ino-n.last > maxPassed {
		return false, nil
	}
	for n.last+1 < ino {
		before := n.last
		if n.passed++; n.passed > maxPassed {
			return false, nil
		}
		if err := n.pass(); err != nil {
			return false, err
		}
		if n.last != before+1 {
			return false, nil
		}
	}
	return true, nil
}

// pass takes the next number away.
func (n *numbering) pass() error {
	fd, err := unix.Openat(n.root, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make a file without a name: %w", err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	n.last = st.Ino
	return errors.Join(err, unix.Close(fd))
}

// make makes a file with the next number.
func (n *numbering) make(f numbered) (err error) {
	name := n.name(f.ino)
	switch f.kind {
	case unix.S_IFDIR:
		err = unix.Mkdirat(n.root, name, 0o700)
	case unix.S_IFLNK:
		err = unix.Symlinkat(f.link, n.root, name)
	case unix.S_IFREG:
		err = unix.Mknodat(n.root, name, unix.S_IFREG|0o600, 0)
	default:
		err = unix.Mknodat(n.root, name, f.kind|0o600, int(f.rdev))
	}
	if err != nil {
		return err
	}
	n.made[f.ino] = true
	var st unix.Stat_t
	if err := unix.Fstatat(n.root, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	n.last = st.Ino
	return nil
}

func (n *numbering) name(ino uint64) string { return n.prefix + strconv.FormatUint(ino, 10) }

// place gives a file its name, if it was made. It is false if not.
func (n *numbering) place(ino uint64, dir int, name string) (bool, error) {
	if !n.made[ino] {
		return false, nil
	}
	delete(n.made, ino)
	return true, unix.Renameat2(n.root, n.name(ino), dir, name, unix.RENAME_NOREPLACE)
}
