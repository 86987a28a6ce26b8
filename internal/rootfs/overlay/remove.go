package overlay

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// removedPrefix marks what waits for the reaper, also for the next store that
// opens the pool.
const removedPrefix = ".rm-"

func removedID(name string) string { return strings.TrimPrefix(name, removedPrefix) }

// Remove implements [rootfs.Store].
func (s *Store) Remove(id string) error {
	if err := s.remove(id); err != nil {
		return rootfs.Errorf("remove %s: %w", id, err)
	}
	return nil
}

func (s *Store) remove(id string) error {
	if err := rootfs.ValidID(id); err != nil {
		return err
	}
	name := removedPrefix + id
	if err := unix.Renameat2(s.pool, id, s.pool, name, unix.RENAME_NOREPLACE); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return fault.New(fault.NotFound, "no upper or snapshot %s", id)
		}
		return err
	}
	s.mu.Lock()
	u := s.uppers[id]
	delete(s.uppers, id)
	s.mu.Unlock()
	if u != nil {
		u.mu.Lock() // a snapshot of it may be under way
		if err := s.discount(u); err != nil {
			s.log.Warn("rootfs: discount what was removed", "upper", id, "err", err)
		}
		u.close()
		u.mu.Unlock()
	}
	s.reaper.add(name)
	return nil
}

// Hold implements [rootfs.Store].
func (s *Store) Hold() { s.reaper.hold() }

// Release implements [rootfs.Store].
func (s *Store) Release() { s.reaper.release() }

// resumeRemovals queues what an earlier store left undone.
func (s *Store) resumeRemovals() error {
	names, err := s.names()
	if err != nil {
		return rootfs.Errorf("open store: %w", err)
	}
	for _, n := range names {
		if strings.HasPrefix(n, removedPrefix) {
			s.reaper.add(n)
		}
	}
	return nil
}

// List implements [rootfs.Store].
func (s *Store) List() ([]rootfs.Entry, error) {
	names, err := s.names()
	if err != nil {
		return nil, rootfs.Errorf("list the store: %w", err)
	}
	var es []rootfs.Entry
	for _, n := range names {
		if rootfs.ValidID(n) != nil {
			continue
		}
		fd, err := s.openID(n)
		if fault.Is(err, fault.NotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, rootfs.Errorf("list the store: %w", err)
		}
		info, err := btrfs.SubvolumeInfo(fd)
		unix.Close(fd)
		if err != nil {
			return nil, rootfs.Errorf("list the store: %s: %w", n, err)
		}
		es = append(es, rootfs.Entry{ID: n, Snapshot: info.ReadOnly})
	}
	return es, nil
}

// names lists the pool's directory, sorted.
func (s *Store) names() ([]string, error) {
	fd, err := unix.Openat(s.pool, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), "pool")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}
