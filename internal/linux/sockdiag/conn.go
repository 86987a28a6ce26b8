package sockdiag

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Conn is a netlink socket of one network namespace, which it keeps alive. It
// is for one thread at a time.
type Conn struct {
	fd  int
	buf []byte
}

// Open opens a Conn in the network namespace of the calling thread.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &Conn{fd: fd, buf: make([]byte, 1<<16)}, nil
}

// OpenIn opens a Conn in another network namespace, given by a descriptor. The
// calling goroutine must be locked to its thread, which is in that namespace
// for a moment. It needs CAP_SYS_ADMIN there.
func OpenIn(namespace int) (c *Conn, err error) {
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the own network namespace: %w", err)
	}
	defer unix.Close(own)
	if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter a network namespace: %w", err)
	}
	c, err = Open()
	if back := unix.Setns(own, unix.CLONE_NEWNET); back != nil {
		// The thread would do whatever comes next in the wrong place.
		panic(fmt.Sprintf("sockdiag: cannot go back to the own network namespace: %v", back))
	}
	return c, err
}

// Close gives the namespace up.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// attribute is one of a message's attributes (struct nlattr).
const attributeSize = 4

// dump sends a request for all sockets of a kind and calls f with the body of
// each answer, which is valid during the call.
func (c *Conn) dump(what string, request []byte, f func(body []byte) error) error {
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(request)))
	m = binary.NativeEndian.AppendUint16(m, unix.SOCK_DIAG_BY_FAMILY)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	m = append(m, 0, 0, 0, 0, 0, 0, 0, 0) // sequence, port
	m = append(m, request...)
	if err := unix.Sendto(c.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("list %s sockets: %w", what, err)
	}
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s sockets: %w", what, err)
		}
		done, err := messages(c.buf[:n], f)
		if err == unix.ENOENT { // no module answers for the family
			return fault.New(fault.Unsupported, "the kernel does not list %s sockets", what).
				WithHint("it needs CONFIG_UNIX_DIAG, CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG, CONFIG_INET_UDP_DIAG and CONFIG_NETLINK_DIAG")
		}
		if err != nil {
			return fmt.Errorf("list %s sockets: %w", what, err)
		}
		if done {
			return nil
		}
	}
}

// messages divides what one read gave.
func messages(b []byte, f func(body []byte) error) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, fault.New(fault.Internal, "a netlink message of %d bytes in %d", size, len(b))
		}
		body := b[unix.SizeofNlMsghdr:size]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, fault.New(fault.Internal, "a netlink error of %d bytes", len(body))
			}
			if e := int32(binary.NativeEndian.Uint32(body)); e != 0 {
				return false, unix.Errno(-e)
			}
		case unix.SOCK_DIAG_BY_FAMILY:
			if err := f(body); err != nil {
				return false, err
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return false, nil
}

// attributes calls f with each attribute behind a message's fixed part.
func attributes(b []byte, f func(typ uint16, value []byte)) {
	for len(b) >= attributeSize {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attributeSize || size > len(b) {
			return
		}
		f(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[attributeSize:size])
		b = b[min((size+3)&^3, len(b)):]
	}
}

func word(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
