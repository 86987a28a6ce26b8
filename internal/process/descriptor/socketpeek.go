package descriptor

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// scmPIDFD is SCM_PIDFD (linux/socket.h, 6.5).
const scmPIDFD = 4

// peeker looks through the queue of a socket and leaves it as it is. It sets
// SO_PEEK_OFF meanwhile (socket(7)).
type peeker struct {
	c       *Capturer
	index   int // of the description; adding others moves it
	fd      int
	stream  bool
	data    []byte
	control [2048]byte // SCM_MAX_FD descriptors and credentials
	from    [128]byte
}

// peekQueue returns what a socket has received and nobody has read. carried
// descriptors become descriptions of their own.
func (c *Capturer) peekQueue(index int, stream, shutdown bool) (out []image.Message, err error) {
	d := &c.descriptions[index]
	p := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}
	if _, err := poll(p, 0); err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	if p[0].Revents&unix.POLLIN == 0 {
		return nil, nil
	}
	size := 1 << 16
	failed := p[0].Revents&unix.POLLERR != 0
	if stream || failed {
		unread, err := unix.IoctlGetInt(d.fd, unix.TIOCINQ)
		switch {
		case err != nil:
			return nil, fmt.Errorf("unread bytes: %w", err)
		case unread == 0:
			return nil, nil // a look would take the error
		case !stream: // as it would before any message
			return nil, c.refuse(d, "a socket with unread messages and an error that was not reported yet", "let it read them").Passing()
		}
		size = unread
	}
	old, err := unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF)
	if err != nil {
		return nil, fmt.Errorf("SO_PEEK_OFF: %w", err)
	}
	k := peeker{c: c, index: index, fd: d.fd, stream: stream, data: make([]byte, size)}
	defer func() {
		if e := unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, old); e != nil && err == nil {
			err = fmt.Errorf("set SO_PEEK_OFF back: %w", e)
		}
	}()
	for off := 0; ; {
		if stream && off >= size { // behind the last byte an error would be taken
			return out, nil
		}
		some, n, err := k.next(off)
		if err != nil || some == nil {
			return out, err
		}
		if n == 0 && shutdown { // the end of file, again and again
			return out, nil
		}
		off += n
		out = append(out, some...)
		if c.saved += int64(n) + messageCost; c.saved > c.env.MaxContent {
			return nil, c.refuse(&c.descriptions[index], fmt.Sprintf("a socket with much unread data (%d bytes to save in all, limit %d)",
				c.saved, c.env.MaxContent), "let its reader read")
		}
	}
}

// messageCost is what a message takes beside its data.
const messageCost = 64

// next peeks at what is behind off bytes; nil if there is nothing.
func (k *peeker) next(off int) ([]image.Message, int, error) {
	for {
		if err := unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, off); err != nil {
			return nil, 0, fmt.Errorf("set SO_PEEK_OFF: %w", err)
		}
		e := envelope{control: k.control[:], from: k.from[:]}
		n, err := receiveMessage(k.fd, k.data, &e, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_TRUNC|unix.MSG_CMSG_CLOEXEC)
		if err == unix.EAGAIN || err == nil && n == 0 && k.stream {
			return nil, 0, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("look at its queue: %w", err)
		}
		m := image.Message{From: append([]byte(nil), e.from...)}
		if len(e.from) <= 2 {
			m.From = nil
		}
		fds, err := k.parse(e.control, &m)
		if err == nil && e.flags&unix.MSG_CTRUNC != 0 {
			err = fmt.Errorf("look at its queue: more control data than fits")
		}
		if err != nil || n > len(k.data) {
			closeAll(fds)
			if err != nil {
				return nil, 0, err
			}
			k.data = make([]byte, n)
			continue
		}
		m.Data = append([]byte(nil), k.data[:n]...)
		return k.take(m, fds, off)
	}
}

// take makes messages of what was peeked.
func (k *peeker) take(m image.Message, fds []int, off int) ([]image.Message, int, error) {
	n := len(m.Data)
	for i, fd := range fds {
		d := &k.c.descriptions[k.index]
		at, err := k.c.add(description{fd: fd, proc: d.proc, num: d.num, carried: true})
		if err != nil {
			closeAll(fds[i+1:])
			return nil, 0, err
		}
		m.Files = append(m.Files, at)
	}
	if !k.stream || len(fds) == 0 || n < 2 {
		return []image.Message{m}, n, nil
	}
	// A peek joins messages up to the first that carries descriptors, and a
	// reader gets those with that message's first byte.
	if err := unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, off); err != nil {
		return nil, 0, fmt.Errorf("set SO_PEEK_OFF: %w", err)
	}
	before, err := faultingPeek(k.fd, n)
	if err != nil {
		return nil, 0, fmt.Errorf("look where a message begins: %w", err)
	}
	if before <= 0 || before >= n {
		return []image.Message{m}, n, nil
	}
	first := image.Message{Data: m.Data[:before:before], Sender: m.Sender}
	m.Data = m.Data[before:]
	return []image.Message{first, m}, n, nil
}

// parse takes what is in a message's control data, and returns descriptors.
func (k *peeker) parse(control []byte, m *image.Message) (fds []int, err error) {
	for len(control) >= unix.SizeofCmsghdr {
		size := int(binary.NativeEndian.Uint64(control))
		if size < unix.SizeofCmsghdr || size > len(control) {
			break
		}
		level, typ := binary.NativeEndian.Uint32(control[8:]), binary.NativeEndian.Uint32(control[12:])
		body := control[unix.SizeofCmsghdr:size]
		control = control[min((size+7)&^7, len(control)):]
		if level != unix.SOL_SOCKET {
			continue
		}
		switch typ {
		case unix.SCM_RIGHTS:
			for ; len(body) >= 4; body = body[4:] {
				fds = append(fds, int(int32(binary.NativeEndian.Uint32(body))))
			}
		case unix.SCM_CREDENTIALS:
			if len(body) >= unix.SizeofUcred {
				m.Sender, err = k.c.peer(k.c.descriptions[k.index].proc, body)
			}
		case scmPIDFD:
			if len(body) >= 4 {
				_ = unix.Close(int(int32(binary.NativeEndian.Uint32(body))))
			}
		}
	}
	return fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
