package descriptor

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/sockdiag"
	"github.com/sandtree/sandtree/internal/linux/tcprepair"
	"github.com/sandtree/sandtree/internal/process/image"
)

// More states of sockets (net/tcp_states.h).
const (
	stateSynSent   = 2
	stateSynRecv   = 3
	stateFinWait1  = 4
	stateFinWait2  = 5
	stateTimeWait  = 6
	stateCloseWait = 8
	stateLastAck   = 9
	stateClosing   = 11
)

// sentFIN reports whether a socket in a state has told the other end that it
// sends no more, receivedFIN whether the other has told that.
func sentFIN(state int) bool {
	return slices.Contains([]int{stateFinWait1, stateFinWait2, stateLastAck, stateClosing, stateTimeWait}, state)
}

func receivedFIN(state int) bool {
	return slices.Contains([]int{stateCloseWait, stateLastAck, stateClosing, stateTimeWait}, state)
}

// tcpFamily are TCP sockets whose other ends are in the sandbox too (tcp(7)).
type tcpFamily struct{}

// ends are the two addresses of a connection.
type ends struct{ local, remote netip.AddrPort }

func (tcpFamily) queue(*Capturer, int) error { return nil }

// inetAddress is a struct sockaddr of IPv4 or IPv6. An IPv4 address mapped to
// IPv6 is given as the former.
func inetAddress(b []byte) netip.AddrPort {
	switch {
	case len(b) >= 8 && binary.NativeEndian.Uint16(b) == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
	case len(b) >= 24 && binary.NativeEndian.Uint16(b) == unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])).Unmap(), binary.BigEndian.Uint16(b[2:]))
	}
	return netip.AddrPort{}
}

func (f tcpFamily) examine(c *Capturer, d *description) error {
	s := d.socket
	i, err := tcprepair.Get(d.fd)
	if err != nil {
		return err
	}
	s.State = i.State
	s.TCP = &image.TCPSocket{SegmentSize: i.Advertised, SendScale: int(i.Agreed.SendScale), ReceiveScale: int(i.Agreed.ReceiveScale), SendWindow: -1}
	s.TCP.Options = boolInt(i.Agreed.Timestamps)*optTimestamps | boolInt(i.Agreed.SelectiveAcks)*optSACK | boolInt(i.Agreed.Scaled)*optScaled
	if i.HasWindows {
		s.TCP.SendWindow = int64(i.SendWindow)
	}
	var b [16]byte
	if n, err := getOption(d.fd, unix.IPPROTO_TCP, unix.TCP_ULP, b[:]); err == nil && n > 0 && b[0] != 0 {
		return c.refuse(d, "a TCP socket with TLS in the kernel", "close it")
	}
	p := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLPRI | unix.POLLRDHUP}}
	if _, err := poll(p, 0); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	if p[0].Revents&unix.POLLPRI != 0 {
		return c.refuse(d, "a TCP socket with unread urgent data", "let it read that").Passing()
	}
	s.Failed = p[0].Revents&unix.POLLERR != 0
	noMore := p[0].Revents&unix.POLLRDHUP != 0
	switch s.State {
	case stateListen:
		s.Backlog = i.Backlog
		return f.waiting(c, d, i.Waiting)
	case stateClose:
		if s.TCP.Ended = noMore || s.Failed; s.TCP.Ended {
			s.PeerGone, s.TCP.Refused = true, i.RoundTrip == 0
		}
		return f.bound(c, d)
	case stateSynSent, stateSynRecv:
		return c.refuse(d, "a TCP socket that is just connecting", "wait until it is connected").Passing()
	}
	if noMore && !receivedFIN(s.State) {
		s.Shutdown = shutReceive
	}
	if err := f.bound(c, d); err != nil {
		return err
	}
	return f.peer(c, d)
}

// Bits of TCP_INFO's options.
const (
	optTimestamps = 1
	optSACK       = 2
	optScaled     = 4
)

// bound counts what there is to save.
func (tcpFamily) bound(c *Capturer, d *description) error {
	for _, request := range []uint{unix.TIOCINQ, unix.SIOCOUTQ} {
		n, err := unix.IoctlGetInt(d.fd, request)
		if err != nil {
			return fmt.Errorf("size of its queues: %w", err)
		}
		if c.saved += int64(n); c.saved > c.env.MaxContent {
			return c.refuse(d, fmt.Sprintf("a TCP socket with much unread data (%d bytes to save in all, limit %d)", c.saved, c.env.MaxContent), "let its reader read")
		}
	}
	return nil
}

// tcpSockets lists the TCP sockets of the sandbox, once for a capture.
func (c *Capturer) tcpSockets() ([]sockdiag.Inet, error) {
	if c.tcp != nil {
		return c.tcp, nil
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		some, err := c.diag.TCP(family)
		if err != nil {
			return nil, err
		}
		c.tcp = append(c.tcp, some...)
	}
	return c.tcp, nil
}

// endOf finds the socket of a connection, or -1.
func (c *Capturer) endOf(e ends) int {
	if c.ends == nil {
		c.ends = map[ends]int{}
		for i := range c.descriptions {
			d := &c.descriptions[i]
			if s := d.socket; s != nil && isTCP(s) {
				local, _ := addressFrom(d.fd, unix.SYS_GETSOCKNAME)
				if remote, err := addressFrom(d.fd, unix.SYS_GETPEERNAME); err == nil {
					c.ends[ends{inetAddress(local), inetAddress(remote)}] = i
				}
			}
		}
	}
	if i, ok := c.ends[e]; ok {
		return i
	}
	return -1
}

// peer finds the other end of a connection.
func (tcpFamily) peer(c *Capturer, d *description) error {
	s := d.socket
	e := ends{inetAddress(s.Local), inetAddress(s.Remote)}
	other := ends{e.remote, e.local}
	s.Peer = c.endOf(other)
	if s.Peer == d.index {
		return c.refuse(d, "a TCP socket that is connected to itself", "close it")
	}
	if s.Peer >= 0 {
		return nil
	}
	all, err := c.tcpSockets()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(i sockdiag.Inet) bool {
		return i.Inode == 0 && ends{i.Local, i.Remote} == other && i.State != stateListen
	})
	switch {
	case at >= 0 && (all[at].State == stateEstablished || all[at].State == stateCloseWait):
		return nil // it waits to be accepted
	case receivedFIN(s.State):
		s.PeerGone = true
		return nil
	case at >= 0 && all[at].State == stateSynRecv:
		return c.refuse(d, "a TCP socket whose connection comes about just now", "wait until it is accepted").Passing()
	case at >= 0:
		return c.refuse(d, "a TCP socket whose other end was closed and still has data to send", "let it read that").Passing()
	}
	return c.refuse(d, fmt.Sprintf("a TCP socket whose other end (%s) is not in the sandbox", e.remote), "close it")
}

func isTCP(s *image.Socket) bool {
	return (s.Domain == unix.AF_INET || s.Domain == unix.AF_INET6) && s.Type == unix.SOCK_STREAM && s.Protocol == unix.IPPROTO_TCP
}

// readSocket reads what is on its way in a connection, from both ends.
func (tcpFamily) read(c *Capturer, d *description) error {
	s := d.socket
	if s.State == stateListen {
		return nil
	}
	if s.Peer < 0 {
		q, err := peekTCP(d.fd)
		if len(q) > 0 {
			s.Queue = []image.Message{{Data: q}}
		}
		if next, ok := c.early[d.index]; ok && err == nil {
			err = c.readUnsent(d, next)
		}
		return err
	}
	return c.readStream(d, &c.descriptions[s.Peer])
}

// readStream reads what one end of a connection has written and the other has
// not read. An acknowledgement may be under way meanwhile.
func (c *Capturer) readStream(from, to *description) error {
	for range streamTries {
		unacknowledged, err := unix.IoctlGetInt(from.fd, unix.SIOCOUTQ)
		if err != nil {
			return fmt.Errorf("unacknowledged bytes: %w", err)
		}
		var tail []byte
		var una, next uint32
		if unacknowledged > 0 {
			if tail, una, err = unacknowledgedBytes(from.fd, unacknowledged); err != nil {
				return err
			}
			if next, err = nextToReceive(to.fd); err != nil {
				return err
			}
		}
		queue, err := peekTCP(to.fd)
		if err != nil {
			return err
		}
		again, err := unix.IoctlGetInt(from.fd, unix.SIOCOUTQ)
		if err != nil {
			return fmt.Errorf("unacknowledged bytes: %w", err)
		}
		had := int(next - una) // of the tail, which the other end has received
		if again != unacknowledged || had < 0 || had > unacknowledged {
			continue
		}
		if len(queue) > 0 {
			to.socket.Queue = []image.Message{{Data: queue}}
		}
		if had < len(tail) {
			from.socket.TCP.Unsent = tail[had:]
		}
		if w := &from.socket.TCP.SendWindow; *w >= 0 {
			*w = max(0, *w-int64(had))
		}
		return nil
	}
	return fault.New(fault.Uncapturable, "process %d (%s) has a TCP socket as descriptor %d that never stands still", c.procs[from.proc].PID, c.procs[from.proc].Comm, from.num).
		WithHint("try again").Passing()
}

// streamTries is how often acknowledgements may come between.
const streamTries = 100

// unacknowledgedBytes are those that were written and not acknowledged, with
// the sequence number of the first.
func unacknowledgedBytes(fd, n int) (tail []byte, una uint32, err error) {
	reuse, err := tcprepair.Enter(fd)
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		if e := tcprepair.Leave(fd, reuse); err == nil {
			err = e
		}
	}()
	next, err := tcprepair.Sequence(fd, tcprepair.Send)
	if err != nil {
		return nil, 0, err
	}
	if n == 0 {
		return nil, next, nil
	}
	tail = make([]byte, n)
	got, err := tcprepair.Unacknowledged(fd, tail)
	if err != nil {
		return nil, 0, err
	}
	return tail[:got], next - uint32(n), nil
}

func nextToReceive(fd int) (n uint32, err error) {
	reuse, err := tcprepair.Enter(fd)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := tcprepair.Leave(fd, reuse); err == nil {
			err = e
		}
	}()
	return tcprepair.Sequence(fd, tcprepair.Receive)
}

// peekTCP reads what a connection has received and leaves it there.
func peekTCP(fd int) ([]byte, error) {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || n == 0 {
		return nil, err
	}
	old, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF)
	if err == nil && old >= 0 { // Linux 6.9
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1); err != nil {
			return nil, fmt.Errorf("SO_PEEK_OFF: %w", err)
		}
		defer func() { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, old) }()
	}
	b := make([]byte, n)
	got, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("look at its queue: %w", err)
	}
	return b[:got], nil
}
