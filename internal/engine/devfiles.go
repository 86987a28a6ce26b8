package engine

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/sandbox"
)

// readChanged reads what of /dev is not as in a new sandbox, whose root has the given id on
// the host. What is missing has no mode.
func (s *directory) readChanged(dir int, owner uint32) error {
	var own unix.Stat_t
	if err := unix.Fstat(dir, &own); err != nil {
		return fmt.Errorf("stat /%s: %w", s.at, err)
	}
	if same, err := s.sameNodes(dir, &own, owner); same || err != nil {
		return err
	}
	names, err := readNames(dir)
	if err != nil {
		return fmt.Errorf("read /%s: %w", s.at, err)
	}
	slices.Sort(names)
	fresh, seen := freshDevices(), map[string]bool{}
	content := map[uint64]string{}
	for _, name := range names {
		e, err := s.look(dir, "", name)
		if err != nil {
			return err
		}
		d, ok := fresh[name]
		seen[name] = true
		if e.stat.Dev != own.Dev || ok && isFresh(&e, &d, owner) { // mounted there, or as it was
			continue
		}
		if err := s.add(dir, name, e, content); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fresh)) {
		if !seen[name] {
			s.entries = append(s.entries, memoryFile{path: name, data: -1})
		}
	}
	return nil
}

// sameNodes reports whether all is as it was, which costs a third of looking at everything: no
// name has changed, and the nodes have their owners and rights.
func (s *directory) sameNodes(dir int, own *unix.Stat_t, owner uint32) (bool, error) {
	if own.Mtim != sandbox.DevMade {
		return false, nil
	}
	var e memoryFile
	for _, d := range sandbox.Devices() {
		if d.Link != "" {
			continue
		}
		err := unix.Fstatat(dir, d.Name, &e.stat, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && err != unix.ENOENT { // it is missing if the time was set
			return false, fmt.Errorf("stat /%s/%s: %w", s.at, d.Name, err)
		}
		if err != nil || !isFresh(&e, &d, owner) {
			return false, nil
		}
	}
	return true, nil
}

func freshDevices() map[string]sandbox.Device {
	m := map[string]sandbox.Device{}
	for _, d := range sandbox.Devices() {
		m[d.Name] = d
	}
	return m
}

func isFresh(e *memoryFile, d *sandbox.Device, owner uint32) bool {
	if e.stat.Uid != owner || e.stat.Gid != owner {
		return false
	}
	if d.Link != "" {
		return e.stat.Mode&unix.S_IFMT == unix.S_IFLNK && e.link == d.Link
	}
	return e.stat.Mode == unix.S_IFCHR|0o666 && e.stat.Rdev == d.Rdev
}

// clear takes away what a new sandbox has in /dev and this one had not, or had otherwise.
func (s *directory) clear(dir int) error {
	if s.at != "dev" {
		return nil
	}
	fresh := freshDevices()
	for i := range s.entries {
		e := &s.entries[i]
		d, ok := fresh[e.path]
		if !ok || d.Link == "" && e.isDevice() && e.stat.Rdev == d.Rdev {
			continue
		}
		if err := unix.Unlinkat(dir, e.path, 0); err != nil {
			return fmt.Errorf("remove %s: %w", e.path, err)
		}
	}
	return nil
}

// isDevice tells of nodes: those that /dev has, perhaps by another name or with other
// rights. Others cannot be made inside.
func (e *memoryFile) isDevice() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFCHR }
