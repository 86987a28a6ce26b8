package descriptor

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// udpFamily are UDP sockets (udp(7)). What they receive comes from inside: a
// sandbox has no other network.
type udpFamily struct{}

func isUDP(s *image.Socket) bool {
	return (s.Domain == unix.AF_INET || s.Domain == unix.AF_INET6) && s.Type == unix.SOCK_DGRAM && s.Protocol == unix.IPPROTO_UDP
}

func (udpFamily) queue(c *Capturer, index int) (err error) {
	d := &c.descriptions[index]
	q, err := c.peekQueue(index, false, false)
	d.socket.Queue = q
	return err
}

func (udpFamily) examine(_ *Capturer, d *description) error {
	d.socket.State = stateClose
	if d.socket.Remote != nil {
		d.socket.State = stateEstablished
	}
	return nil
}

func (udpFamily) read(*Capturer, *description) error { return nil }

// makeUDP makes all UDP sockets.
func (w *workshop) makeUDP() error {
	if err := w.createAll(isUDP); err != nil {
		return err
	}
	raw := map[int]int{} // by family
	for i, f := range w.files {
		s := f.Socket
		if s == nil || !isUDP(s) {
			continue
		}
		if err := w.makeUDPSocket(i, s, raw); err != nil {
			return fmt.Errorf("restore a UDP socket (%s, %s): %w", inetAddress(s.Local), inetAddress(s.Remote), err)
		}
	}
	return nil
}

func (w *workshop) makeUDPSocket(file int, s *image.Socket, raw map[int]int) error {
	fd := w.fd[file]
	if a := inetAddress(s.Local); a.Port() != 0 || a.IsValid() && !a.Addr().IsUnspecified() {
		err := bindTo(fd, addressToBind(s, s.Local))
		if err == unix.EADDRINUSE { // by one with another address, since
			err = bindTo(fd, s.Local)
		}
		if err != nil {
			return fmt.Errorf("bind: %w", err)
		}
	}
	n := 0
	for i := range s.Queue {
		n += len(s.Queue[i].Data) + 1024
	}
	before, err := enlarge(fd, n, 0)
	if err != nil {
		return err
	}
	for i := range s.Queue {
		if err := w.sendAs(fd, s, &s.Queue[i], raw); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := resize(fd, before); err != nil {
			return err
		}
	}
	if s.Remote != nil {
		if err := connectTo(fd, s.Remote); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	return nil
}

// sendAs has a socket receive a datagram that says it is from its old sender.
// The socket is connected to that meanwhile, so that no other one that shares
// its port gets it.
func (w *workshop) sendAs(fd int, s *image.Socket, m *image.Message, raw map[int]int) error {
	if err := connectTo(fd, m.From); err != nil {
		return fmt.Errorf("connect for a moment: %w", err)
	}
	own, err := addressFrom(fd, unix.SYS_GETSOCKNAME)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	from, to := inetAddress(m.From), inetAddress(own)
	family, header := unix.AF_INET, 20
	if from.Addr().Is6() {
		family, header = unix.AF_INET6, 40
	}
	out, ok := raw[family]
	if !ok {
		k, err := w.workers[0].socket(&image.Socket{Domain: family, Type: unix.SOCK_RAW, Protocol: unix.IPPROTO_RAW})
		if err == nil {
			out, err = k.fetch()
		}
		if err != nil {
			return err
		}
		raw[family], w.temps = out, append(w.temps, out)
		// Large datagrams must not wait in the sender's buffer.
		if err := unix.SetsockoptInt(out, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<20); err != nil {
			return fmt.Errorf("SO_SNDBUFFORCE: %w", err)
		}
	}
	if _, err := sendMessage(out, udpPacket(from, to, m.Data, header), rawAddress(to), nil, unix.MSG_DONTWAIT); err != nil {
		return fmt.Errorf("send %d bytes anew: %w", len(m.Data), err)
	}
	if err := awaitDatagram(fd); err != nil {
		return err
	}
	none := make([]byte, len(s.Local)) // AF_UNSPEC
	if err := connectTo(fd, none); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return nil
}

// awaitDatagram waits until a socket has something to read. What was sent over
// loopback is there at once, if no interrupt is put off.
func awaitDatagram(fd int) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := poll(p, acceptPatience); err != nil || n == 0 {
		return fmt.Errorf("a datagram did not come: %v", err)
	}
	return nil
}

// udpPacket is an IP packet with a datagram. The kernel fills in the length and
// checksum of an IPv4 header (raw(7)).
func udpPacket(from, to netip.AddrPort, data []byte, header int) []byte {
	const udpHeader = 8
	length := udpHeader + len(data)
	var p []byte
	if header == 20 {
		p = append(p, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
		binary.BigEndian.PutUint16(p[2:], uint16(header+length))
	} else {
		p = append(p, 0x60, 0, 0, 0, 0, 0, unix.IPPROTO_UDP, 64)
		binary.BigEndian.PutUint16(p[4:], uint16(length))
	}
	p = append(append(p, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	at := len(p)
	p = binary.BigEndian.AppendUint16(p, from.Port())
	p = binary.BigEndian.AppendUint16(p, to.Port())
	p = binary.BigEndian.AppendUint16(p, uint16(length))
	p = append(append(p, 0, 0), data...)
	// The pseudo header is addresses, length and protocol.
	sum := checksum(uint32(length+unix.IPPROTO_UDP), append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), p[at:]...))
	binary.BigEndian.PutUint16(p[at+6:], sum)
	return p
}

// checksum is the Internet checksum (RFC 1071); 0 is sent as all ones.
func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0xffff
	}
	return ^uint16(sum)
}

// rawAddress is where a raw socket sends to: a port means nothing to it.
func rawAddress(to netip.AddrPort) []byte {
	if to.Addr().Is4() {
		b := make([]byte, unix.SizeofSockaddrInet4)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		copy(b[4:], to.Addr().AsSlice())
		return b
	}
	b := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	copy(b[8:], to.Addr().AsSlice())
	return b
}
