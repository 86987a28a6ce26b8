package descriptor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
	"github.com/sandtree/sandtree/internal/process/image"
)

// What clients have sent before they were accepted is read from the kernel's
// memory, since nothing else tells of it, and sent again by the restored clients.

// unaccepted is what reads such data, or a refusal.
func (c *Capturer) unaccepted(d *description) (*acceptqueue.Reader, error) {
	if c.env.Unaccepted != nil {
		if r := c.env.Unaccepted(); r != nil {
			return r, nil
		}
	}
	return nil, c.refuse(d, fmt.Sprintf("a listening %s socket with a connection that has unread data, or was closed, and was not accepted yet", transport(d.socket)),
		"let it accept the connection").Passing()
}

func transport(s *image.Socket) string {
	if s.Domain == unix.AF_UNIX {
		return "unix"
	}
	return "TCP"
}

// refuseEarly refuses what was not read.
func (c *Capturer) refuseEarly(d *description, err error) error {
	switch {
	case err == nil || fault.Is(err, fault.Uncapturable):
		return err
	case errors.Is(err, acceptqueue.ErrTooMuch):
		return c.refuse(d, fmt.Sprintf("a listening socket whose connections have much unread data (limit %d bytes)", c.env.MaxContent), "let it accept the connections")
	}
	r := c.refuse(d, fmt.Sprintf("a listening %s socket with connections that were not accepted yet, whose data could not be read (%v)", transport(d.socket), err), "let it accept the connections")
	return r.Passing()
}

// earlyTCP reads what waits in a listening socket.
func (c *Capturer) earlyTCP(d *description) error {
	r, err := c.unaccepted(d)
	if err != nil {
		return err
	}
	all, err := r.TCP(d.fd, c.env.MaxContent-c.saved)
	if err != nil {
		return c.refuseEarly(d, err)
	}
	s := d.socket
	s.Waiting, s.Early = nil, nil
	for i := range all {
		a := &all[i]
		if a.State != stateEstablished && a.State != stateCloseWait {
			continue // it was reset
		}
		at := c.endOf(ends{a.Remote, a.Local})
		e := image.Early{}
		if len(a.Unread) > 0 {
			e.Queue = []image.Message{{Data: a.Unread}}
		}
		switch {
		case at >= 0:
			if c.early == nil {
				c.early = map[int]uint32{}
			}
			c.early[at] = a.Next
		case a.State == stateEstablished:
			return c.refuse(d, "a listening TCP socket with a connection that was not accepted yet and whose client was closed and still has data to send", "let it accept the connection").Passing()
		default:
			e.Address = inetBytes(s.Domain, a.Remote)
		}
		s.Waiting, s.Early = append(s.Waiting, at), append(s.Early, e)
		c.saved += int64(len(a.Unread))
	}
	return nil
}

// readUnsent reads what a client has written that its other end has not
// received, which is to receive the byte with the number next.
func (c *Capturer) readUnsent(d *description, next uint32) error {
	n, err := unix.IoctlGetInt(d.fd, unix.SIOCOUTQ)
	if err != nil {
		return fmt.Errorf("unacknowledged bytes: %w", err)
	}
	tail, una, err := unacknowledgedBytes(d.fd, n)
	if err != nil {
		return err
	}
	had := int(int32(next - una))
	if had < 0 { // it has arrived since its other end was looked at
		return c.refuse(d, "a TCP socket whose data arrives just now", "try again").Passing()
	}
	if had < len(tail) {
		d.socket.TCP.Unsent = tail[had:]
	}
	return nil
}

// inetBytes is a struct sockaddr for a socket of a family.
func inetBytes(family int, a netip.AddrPort) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(family))
	b = binary.BigEndian.AppendUint16(b, a.Port())
	if family == unix.AF_INET {
		four := a.Addr().As4()
		return append(append(b, four[:]...), make([]byte, 8)...)
	}
	six := a.Addr().As16() // of IPv4 the mapped form
	return append(append(append(b, make([]byte, 4)...), six[:]...), make([]byte, 4)...)
}

// earlyUnix reads what waits in a listening socket, of which the clients are known.
func (c *Capturer) earlyUnix(d *description) error {
	r, err := c.unaccepted(d)
	if err != nil {
		return err
	}
	all, err := r.Unix(d.fd, c.env.MaxContent-c.saved)
	if err == nil && len(all) != len(d.socket.Waiting) {
		err = fmt.Errorf("%d connections in a queue of %d", len(all), len(d.socket.Waiting))
	}
	if err != nil {
		return c.refuseEarly(d, err)
	}
	m, err := c.idsOf(d.proc)
	if err != nil {
		return err
	}
	person := func(s acceptqueue.Sender) *image.Peer {
		return &image.Peer{PID: c.insidePID(s.PID, false), UID: m.users.in(int(s.UID)), GID: m.groups.in(int(s.GID))}
	}
	for i := range all {
		var e image.Early
		if d.socket.Waiting[i] < 0 {
			e.Client, e.Address = person(all[i].Client), all[i].Address
			if err := c.refuseLostName(d, d.socket, e.Address); err != nil {
				return err
			}
			if err := c.refuseUsedName(d, e.Address, false); err != nil {
				return err
			}
		}
		for _, got := range all[i].Unread {
			q := image.Message{Data: got.Data}
			if q.Files, err = c.openElsewhere(d, r, got.Files); err != nil {
				return err
			}
			if got.Sender != nil {
				q.Sender = person(*got.Sender)
			}
			e.Queue = append(e.Queue, q)
			c.saved += int64(len(got.Data)) + messageCost
		}
		d.socket.Early = append(d.socket.Early, e)
	}
	return nil
}

// refuseOutside refuses a description with another end that nobody in the sandbox has
// open. That end may be on its way to somebody, on a connection that was not accepted
// yet: then this is the reason.
func (c *Capturer) refuseOutside(d *description, what, hint string) error {
	for i := range c.descriptions {
		l := &c.descriptions[i]
		if l.socket == nil || l.socket.Domain != unix.AF_UNIX || l.socket.State != stateListen {
			continue
		}
		u, err := c.unixOf(l)
		if err != nil {
			return err
		}
		if len(u.Waiting) == 0 {
			continue
		}
		r, err := c.unaccepted(l)
		if err != nil {
			return err
		}
		all, err := r.Unix(l.fd, c.env.MaxContent-c.saved)
		if err != nil {
			return c.refuseEarly(l, err)
		}
		for j := range all {
			for _, m := range all[j].Unread {
				if _, err := c.openElsewhere(l, r, m.Files); err != nil {
					return err
				}
			}
		}
	}
	return c.refuse(d, what, hint)
}

// openElsewhere finds the descriptions that came with a message of a connection
// that was not accepted yet. What is open nowhere else cannot be looked into.
func (c *Capturer) openElsewhere(d *description, r *acceptqueue.Reader, files []acceptqueue.File) (out []int, err error) {
	if len(files) == 0 {
		return nil, nil
	}
	if c.addresses == nil {
		fds := make([]int, len(c.descriptions))
		for i := range fds {
			fds[i] = c.descriptions[i].fd
		}
		all, err := r.Files(fds)
		if err != nil {
			return nil, c.refuseEarly(d, err)
		}
		c.addresses = make(map[acceptqueue.File]int, len(all))
		for i, f := range all {
			c.addresses[f] = i
		}
	}
	for _, f := range files {
		at, ok := c.addresses[f]
		if !ok {
			return nil, c.refuse(d, "a listening unix socket with a connection that was not accepted yet, on which a descriptor is on its way that is open nowhere else",
				"let it accept the connection").Passing()
		}
		if k := c.descriptions[at].kind; k.late() {
			return nil, c.refuse(d, fmt.Sprintf("a listening unix socket with a connection that was not accepted yet, and a file (%s) on its way on that", k.name()),
				"let it accept the connection").Passing()
		}
		out = append(out, at)
	}
	return out, nil
}

// earlyOf is what a connection has received that waits.
func earlyOf(s *image.Socket, i int) *image.Early {
	if i < len(s.Early) {
		return &s.Early[i]
	}
	return &image.Early{}
}

// fillEarly has clients of a unix socket send once more what they had sent before they
// were accepted.
func (w *workshop) fillEarly(file int, s *image.Socket) error {
	for i, at := range s.Waiting {
		e := earlyOf(s, i)
		var fd int
		if at >= 0 {
			fd = w.fd[at]
		} else {
			m := w.closed[file][i]
			if m == nil {
				return fmt.Errorf("client %d of a listening socket is not there", i)
			}
			var err error
			if fd, err = m.fetch(); err != nil {
				return err
			}
			w.temps = append(w.temps, fd) // and is closed with these
		}
		if len(e.Queue) == 0 {
			continue
		}
		if err := w.sendAll(fd, nil, e.Queue); err != nil {
			return err
		}
	}
	return nil
}

// sendEarly has a client of a TCP socket send once more what it had sent before
// it was accepted, and what the other end has not received.
func sendEarly(fd int, e *image.Early, unsent []byte) error {
	var data []byte
	for i := range e.Queue {
		data = append(data, e.Queue[i].Data...)
	}
	if data = slices.Concat(data, unsent); len(data) == 0 {
		return nil
	}
	sizes, err := enlarge(fd, 0, len(data))
	if err != nil {
		return err
	}
	if err := sendAgain(fd, data); err != nil {
		return err
	}
	return resize(fd, sizes)
}
