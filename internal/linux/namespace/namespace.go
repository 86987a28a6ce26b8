// Package namespace opens, maps and tunes the namespaces of other processes
// (namespaces(7)) through their files in /proc.
package namespace

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is a namespace's name under /proc/PID/ns.
type Kind string

// The kinds. The two "ForChildren" are what a process's next child gets.
const (
	User            Kind = "user"
	PID             Kind = "pid"
	PIDForChildren  Kind = "pid_for_children"
	Mount           Kind = "mnt"
	Network         Kind = "net"
	IPC             Kind = "ipc"
	UTS             Kind = "uts"
	Cgroup          Kind = "cgroup"
	Time            Kind = "time"
	TimeForChildren Kind = "time_for_children"
)

// Kinds lists the kinds that a process is itself in.
var Kinds = []Kind{User, PID, Mount, Network, IPC, UTS, Cgroup, Time}

// Path is the file that stands for a namespace of a process.
func (k Kind) Path(pid int) string { return fmt.Sprintf("/proc/%d/ns/%s", pid, k) }

// Open opens a namespace of a process, for setns(2), or to keep it. The caller
// closes it. It needs ptrace access to the process.
func Open(pid int, k Kind) (fd int, err error) {
	fd, err = unix.Open(k.Path(pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: k.Path(pid), Err: err}
	}
	return fd, nil
}

// ID identifies a namespace: the inode of its file, unique while it lives.
func ID(pid int, k Kind) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(k.Path(pid), &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: k.Path(pid), Err: err}
	}
	return st.Ino, nil
}

// IDMap maps the ids 0 to Count-1 of a user namespace to those from Base of
// its parent.
type IDMap struct {
	Base  uint32
	Count uint32
}

// Inside turns an id of the parent namespace into one inside. Without a match
// it is the overflow id, 65534, as the kernel shows it (user_namespaces(7)).
func (m IDMap) Inside(id uint32) int {
	if id < m.Base || id-m.Base >= m.Count {
		return Overflow
	}
	return int(id - m.Base)
}

// Outside is the reverse of Inside. It fails for an id that has no match.
func (m IDMap) Outside(id int) (uint32, error) {
	if id < 0 || id >= int(m.Count) {
		return 0, fmt.Errorf("id %d is not in 0 to %d", id, int(m.Count)-1)
	}
	return m.Base + uint32(id), nil
}

// Overflow is the id that stands for all ids without a match.
const Overflow = 65534

// Write gives the user namespace of a process its maps of user and group ids.
// It can be done once, and needs CAP_SETUID and CAP_SETGID in the parent.
func (m IDMap) Write(pid int) error {
	line := fmt.Appendf(nil, "0 %d %d\n", m.Base, m.Count)
	for _, name := range []string{"uid_map", "gid_map"} {
		if err := write(fmt.Sprintf("/proc/%d/%s", pid, name), line); err != nil {
			return err
		}
	}
	return nil
}

// SetClocks sets how far CLOCK_MONOTONIC and CLOCK_BOOTTIME of the time
// namespace that the process's children will be in are ahead of the initial
// namespace's (time_namespaces(7)). It fails with EACCES once that namespace
// has had a member.
func SetClocks(pid int, monotonic, boottime time.Duration) error {
	text := fmt.Appendf(nil, "%d %s\n%d %s\n", unix.CLOCK_MONOTONIC, offset(monotonic), unix.CLOCK_BOOTTIME, offset(boottime))
	return write(fmt.Sprintf("/proc/%d/timens_offsets", pid), text)
}

// offset writes seconds and nanoseconds, the latter never negative.
func offset(d time.Duration) string {
	s, ns := int64(d/time.Second), int64(d%time.Second)
	if ns < 0 {
		s, ns = s-1, ns+int64(time.Second)
	}
	return strconv.FormatInt(s, 10) + " " + strconv.FormatInt(ns, 10)
}

// write makes one write call: the files take nothing in parts.
func write(path string, text []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, text); err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}
