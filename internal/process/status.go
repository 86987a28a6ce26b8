package process

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// status is what is needed of /proc/TID/status (proc_pid_status(5)).
type status struct {
	inner  int    // the thread's number in its own pid namespace
	group  int    // its process's number there
	leader int    // its process's number on the host
	parent int    // its parent's there
	name   string // of the thread
}

// readStatus reads a thread's status by its number on the host.
func readStatus(tid int) (status, error) {
	text, err := statusText(tid)
	if err != nil {
		return status{}, err
	}
	s, err := parseStatus(text)
	if err != nil {
		return s, fmt.Errorf("/proc/%d/status: %w", tid, err)
	}
	return s, nil
}

// statusText reads /proc/TID/status.
func statusText(tid int) ([]byte, error) {
	buf := make([]byte, 4096)
	path := fmt.Sprintf("/proc/%d/status", tid)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	n, err := unix.Read(fd, buf)
	_ = unix.Close(fd)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return buf[:n], nil
}

func parseStatus(text []byte) (s status, err error) {
	if s.leader, err = lastNumber(text, "\nTgid:"); err != nil {
		return s, err
	}
	if s.parent, err = lastNumber(text, "\nPPid:"); err != nil {
		return s, err
	}
	if s.inner, err = lastNumber(text, "\nNSpid:"); err != nil {
		return s, err
	}
	name, _, _ := bytes.Cut(bytes.TrimPrefix(text, []byte("Name:\t")), []byte{'\n'})
	s.name = string(name)
	s.group, err = lastNumber(text, "\nNStgid:")
	return s, err
}

// lastNumber returns the last number of a line. The name, the first line, may
// hold any text but no newline.
func lastNumber(text []byte, key string) (int, error) {
	i := bytes.Index(text, []byte(key))
	if i < 0 {
		return 0, fault.New(fault.Internal, "no line %q", key[1:])
	}
	line, _, _ := bytes.Cut(text[i+len(key):], []byte{'\n'})
	fields := bytes.Fields(line)
	if len(fields) == 0 {
		return 0, fault.New(fault.Internal, "nothing in line %q", key[1:])
	}
	return number(fields[len(fields)-1])
}

func number(b []byte) (int, error) {
	v := 0
	for _, c := range b {
		if c < '0' || c > '9' || v > 1<<40 {
			return 0, fault.New(fault.Internal, "%q is no number", b)
		}
		v = v*10 + int(c-'0')
	}
	if len(b) == 0 {
		return 0, fault.New(fault.Internal, "no number")
	}
	return v, nil
}
