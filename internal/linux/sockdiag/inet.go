package sockdiag

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Inet is what the kernel says of a TCP or UDP socket (linux/inet_diag.h).
type Inet struct {
	Inode         uint32 // 0 for one that no descriptor refers to
	State         uint8
	Local, Remote netip.AddrPort // without a zone
	// Unread is how many bytes wait to be read; an end of file counts as one. Of one
	// that listens it is how many connections wait.
	Unread uint32
}

const (
	inetDiagSize = 72 // struct inet_diag_msg
	inetIDSize   = 48 // struct inet_diag_sockid
)

// TCP lists all TCP sockets of a family, AF_INET or AF_INET6.
func (c *Conn) TCP(family uint8) (all []Inet, err error) {
	r := []byte{family, unix.IPPROTO_TCP, 0, 0}         // extensions, pad
	r = binary.NativeEndian.AppendUint32(r, ^uint32(0)) // states
	r = append(r, make([]byte, inetIDSize)...)
	err = c.dump("TCP", r, func(body []byte) error {
		s, err := parseInet(body)
		if err == nil {
			all = append(all, s)
		}
		return err
	})
	return all, err
}

func parseInet(b []byte) (s Inet, err error) {
	if len(b) < inetDiagSize {
		return s, fault.New(fault.Internal, "%d bytes about a TCP socket", len(b))
	}
	address := func(at int, port []byte) netip.AddrPort {
		p := binary.BigEndian.Uint16(port)
		if b[0] == unix.AF_INET {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[at:at+4])), p)
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[at:at+16])).Unmap(), p)
	}
	return Inet{
		State: b[1], Local: address(8, b[4:]), Remote: address(24, b[6:]),
		Unread: word(b[56:]), Inode: word(b[68:]),
	}, nil
}
