package descriptor

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/tcprepair"
	"github.com/sandtree/sandtree/internal/process/image"
)

// makeTCP makes all TCP sockets. Connections come about without a packet: both
// ends are told what they have agreed on.
func (w *workshop) makeTCP() error {
	if err := w.createAll(isTCP); err != nil {
		return err
	}
	// What listens comes first: connections are then forced beside it.
	for _, step := range []func(int, *image.Socket) error{w.listenTCP, w.connectTCP, w.waitTCP} {
		for i, f := range w.files {
			if f.Socket == nil || !isTCP(f.Socket) {
				continue
			}
			if err := step(i, f.Socket); err != nil {
				return fmt.Errorf("restore a TCP socket (%s, %s): %w", inetAddress(f.Socket.Local), inetAddress(f.Socket.Remote), err)
			}
		}
	}
	return nil
}

// createAll has those that will hold sockets make them, and sets what must be
// set before they have addresses.
func (w *workshop) createAll(which func(*image.Socket) bool) (err error) {
	for i, f := range w.files {
		if f.Socket != nil && which(f.Socket) {
			if w.have[i], err = w.holder(i).socket(f.Socket); err != nil {
				return err
			}
		}
	}
	for i, f := range w.files {
		if f.Socket == nil || !which(f.Socket) {
			continue
		}
		if err := w.give(i); err != nil {
			return err
		}
		// SO_REUSEPORT asks for one owner.
		if err := unix.Fchown(w.fd[i], w.ids.users.out(f.Socket.UID), w.ids.groups.out(f.Socket.GID)); err != nil {
			return fmt.Errorf("fchown: %w", err)
		}
		if err := setOptions(w.fd[i], f.Socket, true); err != nil {
			return err
		}
	}
	return nil
}

// bindTCP gives a socket its address whoever else has it.
func bindTCP(fd int, address []byte) error {
	if a := inetAddress(address); !a.IsValid() || a.Port() == 0 && a.Addr().IsUnspecified() {
		return nil
	}
	reuse, err := tcprepair.Enter(fd)
	if err != nil {
		return err
	}
	if err := bindTo(fd, address); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return tcprepair.Leave(fd, reuse)
}

// listenTCP restores sockets that are not connected.
func (w *workshop) listenTCP(file int, s *image.Socket) error {
	if s.State != stateListen && (s.State != stateClose || s.TCP.Ended) {
		return nil
	}
	if err := bindTCP(w.fd[file], s.Local); err != nil {
		return err
	}
	if s.State == stateListen {
		if err := unix.Listen(w.fd[file], max(s.Backlog, len(s.Waiting))); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

// tcpEnd is one of a connection that is made.
type tcpEnd struct {
	fd            int
	socket        *image.Socket
	local, remote []byte
	next          uint32 // sequence number of the next byte that it writes
	reuse         int
	buffers       [2]int
}

// connectTCP restores connections, from the first of their ends.
func (w *workshop) connectTCP(file int, s *image.Socket) (err error) {
	if s.State == stateListen || s.State == stateClose && !s.TCP.Ended || s.Peer >= 0 && s.Peer < file {
		return nil
	}
	if s.TCP.Refused && s.Failed {
		return w.refuseTCP(file, s)
	}
	a := &tcpEnd{fd: w.fd[file], socket: s, local: s.Local, remote: s.Remote, next: rand.Uint32()}
	var b *tcpEnd
	switch {
	case s.Peer >= 0:
		o := w.files[s.Peer].Socket
		b = &tcpEnd{fd: w.fd[s.Peer], socket: o, local: o.Local, remote: o.Remote, next: rand.Uint32()}
	case s.PeerGone:
		if s.TCP.Ended { // and its other end may have been anybody
			if a.local, a.remote, err = w.endedAddresses(file, s); err != nil {
				return err
			}
		}
		m, err := w.holder(file).socket(s)
		if err != nil {
			return err
		}
		fd, err := m.fetch()
		if err != nil {
			return err
		}
		w.gone[file] = fd
		o := &image.Socket{Domain: s.Domain, Type: s.Type, Protocol: s.Protocol, State: stateEstablished, TCP: &image.TCPSocket{
			Options: s.TCP.Options, SendScale: s.TCP.ReceiveScale, ReceiveScale: s.TCP.SendScale, SegmentSize: s.TCP.SegmentSize, SendWindow: -1,
		}}
		b = &tcpEnd{fd: fd, socket: o, local: a.remote, remote: a.local, next: rand.Uint32()}
	default:
		return nil // its connection waits to be accepted
	}
	for _, e := range []struct{ this, other *tcpEnd }{{a, b}, {b, a}} {
		if err := e.this.connect(e.other); err != nil {
			return err
		}
	}
	for _, e := range []struct{ this, other *tcpEnd }{{a, b}, {b, a}} {
		if err := e.this.leave(e.other); err != nil {
			return err
		}
	}
	for _, e := range []*tcpEnd{a, b} {
		if err := e.goOn(); err != nil {
			return err
		}
	}
	return nil
}

// endedAddresses are some that a connection can have had that is no more.
func (w *workshop) endedAddresses(file int, s *image.Socket) (local, remote []byte, err error) {
	local = append([]byte(nil), s.Local...)
	if inetAddress(local).Addr().IsUnspecified() {
		if s.Domain == unix.AF_INET {
			copy(local[4:], []byte{127, 0, 0, 1})
		} else {
			local[23] = 1
		}
	}
	if err := bindTCP(w.fd[file], addressToBind(s, local)); err != nil {
		return nil, nil, err
	}
	bound, err := addressFrom(w.fd[file], unix.SYS_GETSOCKNAME)
	if err != nil || len(bound) < 4 {
		return nil, nil, fmt.Errorf("getsockname: %w", err)
	}
	copy(local[2:4], bound[2:4]) // its port
	return local, w.somePort(local), nil
}

// somePort is an address with a port that no socket has.
func (w *workshop) somePort(address []byte) []byte {
	if w.ports == nil {
		w.ports = map[uint16]bool{0: true}
		for _, f := range w.files {
			if s := f.Socket; s != nil {
				w.ports[inetAddress(s.Local).Port()], w.ports[inetAddress(s.Remote).Port()] = true, true
			}
		}
	}
	port := uint16(1)
	for w.ports[port] {
		port++
	}
	w.ports[port] = true
	out := append([]byte(nil), address...)
	binary.BigEndian.PutUint16(out[2:], port)
	return out
}

// connect makes an end that has received all that nobody has read yet.
func (e *tcpEnd) connect(other *tcpEnd) (err error) {
	received := e.socket.Queue
	n := 0
	for i := range received {
		n += len(received[i].Data)
	}
	if e.buffers, err = enlarge(e.fd, n, len(e.socket.TCP.Unsent)); err != nil {
		return err
	}
	if e.reuse, err = tcprepair.Enter(e.fd); err != nil {
		return err
	}
	if err := tcprepair.SetSequence(e.fd, tcprepair.Receive, other.next-uint32(n)); err != nil {
		return err
	}
	if err := tcprepair.SetSequence(e.fd, tcprepair.Send, e.next); err != nil {
		return err
	}
	if !e.socket.TCP.Ended { // which has its address by now
		if err := bindTo(e.fd, addressToBind(e.socket, e.local)); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
	}
	if err := connectTo(e.fd, e.remote); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	t := e.socket.TCP
	if err := tcprepair.SetAgreed(e.fd, tcprepair.Agreed{
		Timestamps: t.Options&optTimestamps != 0, SelectiveAcks: t.Options&optSACK != 0, Scaled: t.Options&optScaled != 0,
		SendScale: uint8(t.SendScale), ReceiveScale: uint8(t.ReceiveScale), SegmentSize: other.socket.TCP.SegmentSize,
	}); err != nil {
		return err
	}
	for i := range received {
		if err := tcprepair.PutReceived(e.fd, received[i].Data); err != nil {
			return err
		}
	}
	return nil
}

// leave ends the repair, with the windows as they were: what one will take is
// what the other may send.
func (e *tcpEnd) leave(other *tcpEnd) error {
	window := func(from *tcpEnd) uint32 {
		if w := from.socket.TCP.SendWindow; w >= 0 {
			return uint32(min(w, 1<<30))
		}
		return 1 << 16
	}
	err := tcprepair.SetWindow(e.fd, tcprepair.Window{
		SendUpdate: other.next, Send: window(e), Max: max(window(e), 1<<16),
		Receive: window(other), ReceiveUpdate: other.next,
	})
	if err != nil {
		return err
	}
	return tcprepair.Leave(e.fd, e.reuse)
}

// goOn sends what has not been received, and tells if no more comes.
func (e *tcpEnd) goOn() error {
	if err := sendAgain(e.fd, e.socket.TCP.Unsent); err != nil {
		return err
	}
	if sentFIN(e.socket.State) {
		if err := unix.Shutdown(e.fd, unix.SHUT_WR); err != nil && err != unix.ENOTCONN {
			return fmt.Errorf("shutdown: %w", err)
		}
	}
	if e.socket.Shutdown&shutReceive != 0 {
		if err := unix.Shutdown(e.fd, unix.SHUT_RD); err != nil && err != unix.ENOTCONN {
			return fmt.Errorf("shutdown: %w", err)
		}
	}
	return resize(e.fd, e.buffers)
}

// sendAgain sends data by a socket that has room for it.
func sendAgain(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := sendMessage(fd, data, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != nil {
			return fmt.Errorf("send %d bytes that were on their way: %w", len(data), err)
		}
		data = data[n:]
	}
	return nil
}

// finishTCP ends what had ended.
func finishTCP(fd, gone int, s *image.Socket) error {
	if s.TCP.Ended {
		if err := unix.SetsockoptLinger(gone, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fmt.Errorf("SO_LINGER: %w", err)
		}
	}
	_ = unix.Close(gone)
	if !s.TCP.Ended {
		return nil
	}
	p := []unix.PollFd{{Fd: int32(fd)}}
	if n, err := poll(p, acceptPatience); err != nil || n == 0 {
		return fmt.Errorf("it does not end: %v", err)
	}
	if !s.Failed { // it was told
		if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil {
			return fmt.Errorf("SO_ERROR: %w", err)
		}
	}
	return nil
}

// enlarge makes a socket's buffers large enough for what is put into them, and
// returns their sizes before.
func enlarge(fd, receive, send int) (before [2]int, err error) {
	for i, b := range []struct{ get, force, n int }{
		{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, receive}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, send},
	} {
		if before[i], err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, b.get); err != nil {
			return before, fmt.Errorf("size of a buffer: %w", err)
		}
		if b.n == 0 {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.force, max(2*b.n+1<<16, before[i]/2)); err != nil {
			return before, fmt.Errorf("size of a buffer: %w", err)
		}
	}
	return before, nil
}

// resize gives buffers their sizes back, and leaves them to the kernel.
func resize(fd int, sizes [2]int) error {
	for i, b := range []struct{ get, force int }{{unix.SO_RCVBUF, unix.SO_RCVBUFFORCE}, {unix.SO_SNDBUF, unix.SO_SNDBUFFORCE}} {
		now, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, b.get)
		if err == nil && now != sizes[i] {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, b.force, sizes[i]/2)
		}
		if err != nil {
			return fmt.Errorf("size of a buffer: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0); err != nil && err != unix.ENOPROTOOPT { // Linux 5.16
		return fmt.Errorf("SO_BUF_LOCK: %w", err)
	}
	return nil
}

// refuseTCP has a connection refused once more, of which nobody was told yet.
func (w *workshop) refuseTCP(file int, s *image.Socket) error {
	if err := bindTCP(w.fd[file], s.Local); err != nil {
		return err
	}
	// Nobody listens at a port that a socket has and does nothing with.
	m, err := w.holder(file).socket(s)
	if err != nil {
		return err
	}
	fd, err := m.fetch()
	if err != nil {
		return err
	}
	w.temps = append(w.temps, fd)
	to := w.somePort(s.Local)
	if err := bindTCP(fd, to); err != nil {
		return err
	}
	flags, err := unix.FcntlInt(uintptr(w.fd[file]), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(w.fd[file]), unix.F_SETFL, flags|unix.O_NONBLOCK)
	}
	if err != nil {
		return err
	}
	if err := connectTo(w.fd[file], to); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// waitTCP connects those again whose connections wait to be accepted.
func (w *workshop) waitTCP(file int, s *image.Socket) error {
	if len(s.Waiting) > 0 { // they inherit from the one that listens
		if err := setOptions(w.fd[file], s, false); err != nil {
			return err
		}
		if err := restoreBuffers(w.fd[file], s); err != nil {
			return err
		}
	}
	for i, at := range s.Waiting {
		var fd int
		var own, unsent []byte
		early := earlyOf(s, i)
		if at >= 0 {
			fd, own, unsent = w.fd[at], w.files[at].Socket.Local, w.files[at].Socket.TCP.Unsent
			own = addressToBind(w.files[at].Socket, own)
		} else {
			own = early.Address
			m, err := w.holder(file).socket(s)
			if err != nil {
				return err
			}
			if fd, err = m.fetch(); err != nil {
				return err
			}
			w.temps = append(w.temps, fd)
		}
		if own != nil {
			if err := bindTCP(fd, own); err != nil {
				return err
			}
		}
		to := s.Local
		if at >= 0 {
			to = w.files[at].Socket.Remote
		}
		if err := w.connectWaiting(fd, to); err != nil {
			return err
		}
		if err := sendEarly(fd, early, unsent); err != nil {
			return err
		}
		if at >= 0 && sentFIN(w.files[at].Socket.State) {
			if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
				return fmt.Errorf("shutdown: %w", err)
			}
		}
	}
	if len(s.Waiting) > s.Backlog { // since listen(2) was called once more
		if err := unix.Listen(w.fd[file], s.Backlog); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

// connectWaiting connects to a socket of the sandbox that listens, which is
// done before it is accepted.
func (w *workshop) connectWaiting(fd int, to []byte) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK)
	}
	if err != nil {
		return fmt.Errorf("F_SETFL: %w", err)
	}
	if err := connectTo(fd, to); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connect: %w", err)
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := poll(p, acceptPatience); err != nil || n == 0 {
		return fmt.Errorf("its connection does not come about: %v", err)
	}
	return nil
}
