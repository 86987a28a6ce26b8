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

// WriteIDMaps gives the user namespace of a process its maps of user and of
// group ids: lines of "inside outside count" (user_namespaces(7)). It can be
// done once, and needs CAP_SETUID and CAP_SETGID in the parent namespace.
func WriteIDMaps(pid int, users, groups string) error {
	if err := write(fmt.Sprintf("/proc/%d/uid_map", pid), []byte(users)); err != nil {
		return err
	}
	return write(fmt.Sprintf("/proc/%d/gid_map", pid), []byte(groups))
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
