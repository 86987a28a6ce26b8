package descriptor

import (
	"golang.org/x/sys/unix"
)

// system is the type of the file system that a description is on (statfs(2)),
// or 0 for what is on none.
func (c *Capturer) system(d *description) uint32 {
	t, ok := c.systems[d.stat.Dev]
	if !ok {
		var s unix.Statfs_t
		if err := unix.Fstatfs(d.fd, &s); err == nil {
			t = uint32(s.Type)
		}
		c.systems[d.stat.Dev] = t
	}
	return t
}

// kernelFiles are file systems whose files the kernel makes up.
func kernelFiles(system uint32) bool {
	switch system {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return true
	}
	return false
}

// memfdPrefix begins the name of a memfd (memfd_create(2)).
const memfdPrefix = "/memfd:"

// stored reports whether a description is of a file or directory that a
// snapshot of the file systems can hold.
func (c *Capturer) stored(d *description) bool {
	s := c.system(d)
	if _, ok := systemNames[s]; ok || kernelFiles(s) {
		return false
	}
	link, err := c.linkOf(d)
	return err == nil && len(link) > 0 && link[0] == '/' && (len(link) < len(memfdPrefix) || link[:len(memfdPrefix)] != memfdPrefix)
}
