package wire

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// writeTimeout is how long a peer may take no byte before it is given up. Both
// ends read all the time, so only a stopped process gets here.
const writeTimeout = 30 * time.Second

// Pair returns the two ends of a new connection, close-on-exec. The files are
// in non-blocking mode; a child that inherits one may use [Open] on it.
func Pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fault.New(fault.Exhausted, "socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "socketpair"), os.NewFile(uintptr(fds[1]), "socketpair"), nil
}

// Open makes a connection of a descriptor of a connected unix stream socket.
// It closes f, whatever it returns.
func Open(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fault.New(fault.Invalid, "open descriptor as a connection: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok || u.LocalAddr().Network() != "unix" {
		c.Close()
		return nil, fault.New(fault.Invalid, "open descriptor as a connection: not a unix stream socket")
	}
	return u, nil
}

// socket sends and receives frames. Sends exclude each other; one goroutine
// receives.
type socket struct {
	*net.UnixConn
	// sending holds one token; a channel, so that waiting for it can end.
	sending chan struct{}
}

func newSocket(c *net.UnixConn) *socket {
	return &socket{UnixConn: c, sending: make(chan struct{}, 1)}
}

func (s *socket) receive(p, oob []byte) (n, oobn, flags int, err error) {
	n, oobn, flags, _, err = s.ReadMsgUnix(p, oob) // sets MSG_CMSG_CLOEXEC
	return n, oobn, flags, err
}

// send writes a frame. done ends the wait for others' frames, never a frame
// that has begun. fatal means that the stream is of no more use.
func (s *socket) send(done <-chan struct{}, m *message, files []*os.File) (fatal bool, err error) {
	if len(files) > MaxFiles {
		return false, fault.New(fault.Exhausted, "%d descriptors: at most %d fit into one message", len(files), MaxFiles)
	}
	head := max(0, len(files)-maxRights)
	b, err := encode(m, len(files)-head)
	if err != nil {
		return false, err
	}
	fds, release, err := hold(files)
	if err != nil {
		return false, err
	}
	defer release()

	select {
	case s.sending <- struct{}{}:
	case <-done:
		return false, errEnded
	}
	defer func() { <-s.sending }()
	for first := fds[:head]; len(first) > 0; {
		n := min(len(first), maxRights)
		var h [headerSize]byte
		putHeader(h[:], 0, n, flagMore)
		if err := s.write(h[:], first[:n]); err != nil {
			return true, err
		}
		first = first[n:]
	}
	if err := s.write(b, fds[head:]); err != nil {
		return true, err
	}
	return false, nil
}

var errEnded = fault.New(fault.Canceled, "send: the caller went away")

// write sends all of b; the descriptors go with its first byte.
func (s *socket) write(b []byte, fds []int) error {
	if err := s.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := s.WriteMsgUnix(b, oob, nil)
	if err != nil {
		return err
	}
	for b = b[n:]; len(b) > 0; b = b[n:] {
		if err := s.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if n, _, err = s.WriteMsgUnix(b, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// hold returns the numbers of files, which cannot be closed by others until
// release is called. [os.File.Fd] would change their blocking mode.
func hold(files []*os.File) (fds []int, release func(), err error) {
	fds = make([]int, 0, len(files))
	var dups []int
	release = func() {
		for _, fd := range dups {
			unix.Close(fd)
		}
	}
	for _, f := range files {
		rc, err := f.SyscallConn()
		if err != nil {
			release()
			return nil, nil, fault.New(fault.Invalid, "descriptor to send: %w", err)
		}
		var dup int
		var dupErr error
		err = rc.Control(func(fd uintptr) { dup, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
		if err == nil {
			err = dupErr
		}
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("descriptor %s to send: %w", f.Name(), err)
		}
		dups = append(dups, dup)
		fds = append(fds, dup)
	}
	return fds, release, nil
}
