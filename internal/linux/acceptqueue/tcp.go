package acceptqueue

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// TCP is a connection that waits to be accepted.
type TCP struct {
	Local, Remote netip.AddrPort // IPv4 addresses mapped to IPv6 are given as the former
	State         int            // net/tcp_states.h
	// Unread is what it has received, Next the sequence number of what it will
	// receive next; the end of the stream has a number too.
	Unread []byte
	Next   uint32
}

// Flags of a segment (linux/tcp.h).
const (
	flagFIN = 1
	flagSYN = 2
)

// TCP reads the connections that wait in a listening TCP socket, in the order in
// which they will be accepted, with at most limit bytes ([ErrTooMuch]).
func (r *Reader) TCP(fd int, limit int64) (out []TCP, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sk, err := r.sock(fd)
	if err != nil {
		return nil, err
	}
	request, err := r.pointer(sk + uint64(r.at.acceptHead))
	for request != 0 {
		if err != nil {
			return nil, err
		}
		if len(out) > mostWalked {
			return nil, fmt.Errorf("a queue without an end")
		}
		child, err := r.pointer(request + uint64(r.at.requestSock))
		if err != nil {
			return nil, err
		}
		c, err := r.tcp(child, &limit)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
		if request, err = r.pointer(request + uint64(r.at.requestNext)); err != nil {
			return nil, err
		}
	}
	return out, err
}

// tcp reads one.
func (r *Reader) tcp(sk uint64, limit *int64) (c TCP, err error) {
	b, err := r.read(sk, r.at.tcpSize)
	if err != nil {
		return c, err
	}
	c.State = int(b[r.at.sockState])
	local, remote := r.at.sockAddr, r.at.sockRemoteAddr
	size := 4
	if binary.NativeEndian.Uint16(b[r.at.sockFamily:]) == unix.AF_INET6 {
		local, remote, size = r.at.sockAddr6, r.at.sockRemoteAddr6, 16
	}
	address := func(at int, port uint16) netip.AddrPort {
		a, _ := netip.AddrFromSlice(b[at : at+size])
		return netip.AddrPortFrom(a.Unmap(), port)
	}
	c.Local = address(local, binary.NativeEndian.Uint16(b[r.at.sockPort:]))
	c.Remote = address(remote, binary.BigEndian.Uint16(b[r.at.sockRemotePort:]))
	c.Next = binary.NativeEndian.Uint32(b[r.at.tcpNext:])
	at := binary.NativeEndian.Uint32(b[r.at.tcpCopied:]) // the number of the first unread byte
	ended := false
	err = r.queue(sk+uint64(r.at.sockQueue), func(b buffer) error {
		first := binary.NativeEndian.Uint32(b.control[r.at.tcpSeq:])
		flags := b.control[r.at.tcpFlags]
		if flags&flagSYN != 0 {
			return errOdd // with data: TCP Fast Open
		}
		ended = ended || flags&flagFIN != 0
		if *limit -= int64(b.len); *limit < 0 {
			return ErrTooMuch
		}
		data, err := r.content(b)
		if err != nil {
			return err
		}
		had := int32(at - first)
		if had < 0 {
			return fmt.Errorf("a gap of %d bytes in a queue", -had)
		}
		if int(had) < len(data) {
			c.Unread = append(c.Unread, data[had:]...)
			at += uint32(len(data)) - uint32(had)
		}
		return nil
	})
	if ended {
		at++
	}
	if err == nil && at != c.Next && c.State != stateClose {
		err = fmt.Errorf("a queue that ends at byte %d, not at %d", at, c.Next)
	}
	return c, err
}

const stateClose = 7 // net/tcp_states.h
