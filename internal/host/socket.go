package host

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// backlog is how many clients may wait for a node. The kernel bounds it by
// net.core.somaxconn.
const backlog = 4096

// listen makes the API socket, for root alone. It replaces one that nobody
// listens on any more.
func listen(path string) (*os.File, error) {
	if len(path) >= len(unix.RawSockaddrUnix{}.Path) {
		return nil, fault.New(fault.Invalid, "API socket %s: the path is longer than the %d bytes that a socket's may have", path, len(unix.RawSockaddrUnix{}.Path)-1).
			WithHint("choose a shorter one with --socket")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fault.New(fault.Internal, "API socket: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fault.New(fault.Internal, "API socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), path)
	// Nobody can connect before listen, so not before chmod either.
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	if err == nil {
		err = unix.Chmod(path, 0o600)
	}
	if err == nil {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		f.Close()
		return nil, fault.New(fault.Internal, "API socket %s: %w", path, err)
	}
	return f, nil
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.New(fault.Internal, "API socket: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fault.New(fault.Exists, "API socket %s: something else is there", path).
			WithHint("remove it or choose another path with --socket")
	}
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return fault.New(fault.Conflict, "API socket %s: another program listens on it", path).
			WithHint("choose another path with --socket")
	}
	if err := os.Remove(path); err != nil {
		return fault.New(fault.Internal, "API socket: %w", err)
	}
	return nil
}
