package descriptor

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/sockdiag"
	"github.com/sandtree/sandtree/internal/process/image"
)

// socket are sockets of all families. What is particular to one is in files
// named for it; see families.
type socket struct{ simple }

func (socket) name() image.FileKind { return image.Sockets }

func (socket) claims(_ *Capturer, d *description) bool { return d.socket != nil }

// family is what is particular to a family or protocol of sockets.
type family interface {
	// queue looks at unread data, before all files are known: what it carries
	// becomes files too.
	queue(c *Capturer, index int) error
	// examine fills in the rest, or refuses.
	examine(c *Capturer, d *description) error
	// read reads what examine could not without changing the socket for a
	// moment.
	read(c *Capturer, d *description) error
}

// familyOf finds the family of a socket, nil for those that are refused.
func familyOf(s *image.Socket) family {
	switch {
	case s.Domain == unix.AF_UNIX:
		return unixFamily{}
	case isTCP(s):
		return tcpFamily{}
	case isUDP(s):
		return udpFamily{}
	case s.Domain == unix.AF_NETLINK && slices.Contains(netlinks, s.Protocol):
		return netlinkFamily{}
	}
	return nil
}

// netlinks are the protocols of netlink that a sandbox may speak.
var netlinks = []int{unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_KOBJECT_UEVENT}

// gatherSockets finds out what sockets there are, and what descriptors are on
// their way in them.
func (c *Capturer) gatherSockets() error {
	for i := 0; i < len(c.descriptions); i++ { // their number grows
		d := &c.descriptions[i]
		if d.format() != unix.S_IFSOCK || d.flags&unix.O_PATH != 0 {
			continue
		}
		s, err := c.newSocket(d)
		if err != nil {
			return c.socketError(d, err)
		}
		f := familyOf(s)
		if f == nil {
			return c.refuse(d, nameOfSocket(d.fd), "close it or end the process")
		}
		if d.socket = s; c.diag == nil {
			if err := c.openDiag(d.fd); err != nil {
				return c.socketError(d, err)
			}
		}
		if err := f.queue(c, i); err != nil {
			return c.socketError(&c.descriptions[i], err)
		}
	}
	return nil
}

// socketError says which socket an error is about, if it is no refusal.
func (c *Capturer) socketError(d *description, err error) error {
	if err == nil || fault.Is(err, fault.Uncapturable) {
		return err
	}
	return fmt.Errorf("socket %d of process %d (%s): %w", d.num, c.procs[d.proc].PID, c.procs[d.proc].Comm, err)
}

func (c *Capturer) newSocket(d *description) (*image.Socket, error) {
	s := &image.Socket{Peer: -1}
	for _, o := range []struct {
		name int
		to   *int
	}{{unix.SO_DOMAIN, &s.Domain}, {unix.SO_TYPE, &s.Type}, {unix.SO_PROTOCOL, &s.Protocol}} {
		v, err := unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, o.name)
		if err != nil {
			return nil, fmt.Errorf("option %d: %w", o.name, err)
		}
		*o.to = v
	}
	return s, nil
}

// openDiag opens what all sockets are listed by, in the network namespace of
// the first that is met. The sandbox has one.
func (c *Capturer) openDiag(fd int) error {
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer unix.Close(ns)
	c.diag, err = sockdiag.OpenIn(ns)
	return err
}

func (socket) examine(c *Capturer, d *description) error {
	s := d.socket
	d.file.Socket = s
	m, err := c.idsOf(d.proc)
	if err != nil {
		return err
	}
	s.UID, s.GID = m.users.in(int(d.stat.Uid)), m.groups.in(int(d.stat.Gid))
	if s.Local, err = addressFrom(d.fd, unix.SYS_GETSOCKNAME); err != nil {
		return c.socketError(d, fmt.Errorf("getsockname: %w", err))
	}
	if s.Remote, err = addressFrom(d.fd, unix.SYS_GETPEERNAME); err != nil && err != unix.ENOTCONN {
		return c.socketError(d, fmt.Errorf("getpeername: %w", err))
	}
	if s.Options, err = readOptions(d.fd, socketType{s.Domain, s.Type, s.Protocol}, s.Remote != nil && s.Type == unix.SOCK_STREAM); err != nil {
		return c.socketError(d, err)
	}
	s.Filter, err = filterOf(d.fd)
	if err == unix.EACCES {
		return c.refuse(d, "a socket with an eBPF filter", "close it")
	}
	if err != nil {
		return c.socketError(d, fmt.Errorf("filter: %w", err))
	}
	return c.socketError(d, familyOf(s).examine(c, d))
}

func (socket) read(c *Capturer, d *description) error {
	return c.socketError(d, familyOf(d.socket).read(c, d))
}

// examineWaiting refuses connections whose other end was found nowhere, neither
// in a process nor among those that a listening socket has still to accept.
func (c *Capturer) examineWaiting() error {
	waiting := map[int]bool{}
	for i := range c.descriptions {
		if s := c.descriptions[i].socket; s != nil {
			for _, at := range s.Waiting {
				waiting[at] = true
			}
		}
	}
	for i := range c.descriptions {
		d := &c.descriptions[i]
		s := d.socket
		if s == nil || waiting[i] || s.Peer >= 0 || s.PeerGone {
			continue
		}
		connected := s.TCP != nil && s.State != stateListen && s.State != stateClose
		if connected || s.Unix != nil && s.Unix.Role == image.UnixClient {
			return c.refuse(d, "a socket whose connection nobody in the sandbox can accept", "close it")
		}
	}
	return nil
}

// open is not called: sockets are made by processes, see [Opened.MakeSockets].
func (socket) open(*Opened, *image.File) (int, error) { return -1, nil }

// socketOf finds the socket with an inode, or -1. All are known by then.
func (c *Capturer) socketOf(inode uint32) int {
	if c.sockets == nil {
		c.sockets = map[uint32]int{}
		for i := range c.descriptions {
			if d := &c.descriptions[i]; d.socket != nil {
				c.sockets[uint32(d.stat.Ino)] = i
			}
		}
	}
	if i, ok := c.sockets[inode]; ok {
		return i
	}
	return -1
}

// refuseCarried refuses what cannot be put back into a socket's queue: what a
// process alone can make anew, which is after the queues are filled; and an epoll
// that no process has, whose list a process would fill.
func (c *Capturer) refuseCarried(d *description) error {
	if d.carried && len(d.file.Watches) > 0 {
		return c.refuse(d, fmt.Sprintf("a file (%s) that is on its way in a socket and open nowhere else", d.kind.name()), "let its reader receive it")
	}
	if d.socket == nil {
		return nil
	}
	for i := range d.socket.Queue {
		for _, f := range d.socket.Queue[i].Files {
			if k := c.descriptions[f].kind; k.late() {
				return c.refuse(d, fmt.Sprintf("a socket with a file (%s) on its way in it", k.name()), "let its reader receive that").Passing()
			}
		}
	}
	return nil
}
