// Package lease tells who uses a repository. A lease is a file that its holder
// has locked with flock(2), so that it ends with its holder, however that ends.
package lease

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Lease is held until it is released, or until the process ends.
type Lease struct {
	f    *os.File
	path string
}

// begun is put before the name of a lease that is not locked yet.
const begun = ".begun-"

// Take makes a lease in a directory. Whoever lists the directory after Take has
// returned finds it alive.
func Take(dir string) (*Lease, error) {
	for {
		l, err := take(dir)
		// A look at the directory just then may have taken it for dead.
		if !errors.Is(err, fs.ErrNotExist) {
			return l, err
		}
		if _, err := os.Stat(dir); err != nil {
			return nil, err
		}
	}
}

func take(dir string) (*Lease, error) {
	name := strings.ToLower(rand.Text())
	tmp, path := filepath.Join(dir, begun+name), filepath.Join(dir, name)
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	err = lock(f, 0)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		return &Lease{f, path}, nil
	}
	f.Close()
	_ = os.Remove(tmp)
	return nil, err
}

func lock(f *os.File, flags int) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|flags)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Name is the lease's name in its directory.
func (l *Lease) Name() string { return filepath.Base(l.path) }

// Release ends the lease.
func (l *Lease) Release() error {
	// The name goes first, so that nobody finds a dead lease.
	err := os.Remove(l.path)
	return errors.Join(err, l.f.Close())
}

// Alive lists the leases that are held now, and removes those whose holders
// are gone.
func Alive(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	alive := map[string]bool{}
	for _, e := range entries {
		held, err := probe(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("look at lease %s: %w", e.Name(), err)
		}
		if held {
			alive[strings.TrimPrefix(e.Name(), begun)] = true
		}
	}
	return alive, nil
}

// probe tells whether a lease is held, and removes one that is not.
func probe(path string) (held bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = lock(f, unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return false, nil
}
