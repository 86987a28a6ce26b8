package descriptor

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sockdiag"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process/image"
)

// States of sockets (net/tcp_states.h).
const (
	stateEstablished = 1
	stateClose       = 7
	stateListen      = 10
)

// Bits of Socket.Shutdown (net/sock.h).
const (
	shutReceive = 1
	shutSend    = 2
)

// sioUnixFile is SIOCUNIXFILE (linux/un.h, 4.12): a descriptor of the file that
// a socket is bound to.
const sioUnixFile = 0x89e0

// unixFamily are unix sockets of all types (unix(7)).
type unixFamily struct{}

// socketName is a name that unix sockets of the sandbox have.
type socketName struct {
	abstract    []byte      // with its NUL; each type of socket has such names of its own
	kind        uint8       // the type of socket
	inode, dev  uint32      // else of the file
	place       description // of the file
	path, base  string
	gone, known bool
	attributes  []xattr.Attribute // of the file
}

func (unixFamily) queue(c *Capturer, index int) error {
	d := &c.descriptions[index]
	u, err := c.unixOf(d)
	if err != nil {
		return err
	}
	d.socket.State, d.socket.Shutdown = int(u.State), int(u.Shutdown)
	if u.State == stateListen {
		return nil
	}
	q, err := c.peekQueue(index, d.socket.Type == unix.SOCK_STREAM, u.Shutdown&shutReceive != 0)
	c.descriptions[index].socket.Queue = q
	return err
}

func (unixFamily) read(*Capturer, *description) error { return nil }

// unixOf is what the kernel lists of a unix socket. The list is had once for a
// capture.
func (c *Capturer) unixOf(d *description) (*sockdiag.Unix, error) {
	if c.unix == nil {
		var err error
		if c.unix, err = c.diag.Unix(); err != nil {
			return nil, err
		}
		slices.SortFunc(c.unix, func(a, b sockdiag.Unix) int { return int(a.Inode) - int(b.Inode) })
	}
	i, ok := slices.BinarySearchFunc(c.unix, uint32(d.stat.Ino), func(u sockdiag.Unix, ino uint32) int { return int(u.Inode) - int(ino) })
	if !ok {
		return nil, c.refuse(d, "a unix socket of another network namespace", "close it")
	}
	return &c.unix[i], nil
}

func (f unixFamily) examine(c *Capturer, d *description) error {
	s := d.socket
	u, err := c.unixOf(d)
	if err != nil {
		return err
	}
	s.Unix = &image.UnixSocket{}
	if s.Unix.Credentials, err = c.peerOf(d); err != nil {
		return err
	}
	if len(u.Name) > 0 {
		if err := c.nameSocket(d, u); err != nil {
			return err
		}
	}
	if u.State == stateListen {
		s.Backlog = int(u.Unsent)
		return f.waiting(c, d, u)
	}
	if err := f.urgent(c, d); err != nil {
		return err
	}
	if err := f.peer(c, d, u); err != nil {
		return err
	}
	if s.PeerGone && s.Unix.Role != image.UnixClient {
		carries := slices.ContainsFunc(s.Queue, func(m image.Message) bool { return len(m.Files) > 0 })
		if err := c.refuseUsedName(d, s.Remote, s.Unix.Role == image.UnixAccepted && !carries); err != nil {
			return err
		}
	}
	if s.Type != unix.SOCK_DGRAM {
		return nil
	}
	return f.senders(c, d)
}

// urgent notes a waiting error and refuses out-of-band data.
func (unixFamily) urgent(c *Capturer, d *description) error {
	p := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLPRI}}
	if _, err := poll(p, 0); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	if p[0].Revents&unix.POLLPRI != 0 {
		return c.refuse(d, "a unix socket with unread out-of-band data", "let it read that").Passing()
	}
	d.socket.Failed = p[0].Revents&unix.POLLERR != 0
	return nil
}

// waiting finds the clients that a listening socket has not accepted yet.
func (unixFamily) waiting(c *Capturer, d *description, u *sockdiag.Unix) error {
	early := false
	for _, inode := range u.Waiting {
		if inode == 0 { // its client has closed it
			d.socket.Waiting = append(d.socket.Waiting, -1)
			early = true
			continue
		}
		at := c.socketOf(inode)
		if at < 0 {
			return c.refuseOutside(d, "a listening unix socket to which somebody outside of the sandbox connects", "let it accept the connection")
		}
		unread, err := unix.IoctlGetInt(c.descriptions[at].fd, unix.SIOCOUTQ)
		if err != nil {
			return fmt.Errorf("unread bytes of a connection that waits: %w", err)
		}
		early = early || unread > 0
		d.socket.Waiting = append(d.socket.Waiting, at)
	}
	if early {
		return c.earlyUnix(d)
	}
	return nil
}

// waits reports whether a socket's connection was not accepted yet.
func (c *Capturer) waits(inode uint32) bool {
	for i := range c.unix {
		if slices.Contains(c.unix[i].Waiting, inode) {
			return true
		}
	}
	return false
}

// peer finds the other end, and how both became that.
func (unixFamily) peer(c *Capturer, d *description, u *sockdiag.Unix) error {
	s := d.socket
	s.Unix.Role = image.UnixPlain
	if !u.HasPeer {
		return nil
	}
	stream := s.Type != unix.SOCK_DGRAM
	switch {
	case stream && u.Peer == 0 && c.waits(u.Inode):
		s.Unix.Role = image.UnixClient
		return nil
	case u.Peer == 0:
		s.PeerGone = true
		if err := c.refuseLostName(d, s, s.Remote); err != nil {
			return err
		}
	default:
		if s.Peer = c.socketOf(u.Peer); s.Peer < 0 {
			return c.refuseOutside(d, "a unix socket whose other end is outside of the sandbox", "close it")
		}
	}
	if !stream {
		return c.datagramPeer(d, u)
	}
	switch {
	case s.Local == nil && s.Remote == nil:
		s.Unix.Role = image.UnixPair
	case s.Local == nil:
		s.Unix.Role = image.UnixClient
	case s.Remote == nil:
		s.Unix.Role = image.UnixAccepted
	default:
		return c.named(d, u)
	}
	return nil
}

// named tells which end of a connection was accepted if both have names.
func (c *Capturer) named(d *description, u *sockdiag.Unix) error {
	s, accepted := d.socket, c.looksAccepted(u)
	s.Unix.Role = image.UnixClient
	if s.Peer < 0 {
		if accepted > 0 {
			s.Unix.Role = image.UnixAccepted
		}
		return nil
	}
	peer, err := c.unixOf(&c.descriptions[s.Peer])
	if err != nil {
		return err
	}
	// Where nothing tells it either will do: both get their names.
	if other := c.looksAccepted(peer); accepted > other || accepted == other && s.Peer < d.index {
		s.Unix.Role = image.UnixAccepted
	}
	return nil
}

// looksAccepted tells how sure it is that a socket was accepted: 2, somebody listens at its name,
// which is no client's then; 1, others have its name too, as do all that were accepted
// there, but a client may have it since who listened is gone; 0, nothing says so.
func (c *Capturer) looksAccepted(u *sockdiag.Unix) int {
	sure := 0
	for i := range c.unix {
		switch e := &c.unix[i]; {
		case e.Inode == u.Inode || !sameName(e, u):
		case e.State == stateListen:
			return 2
		default:
			sure = 1
		}
	}
	return sure
}

// datagramPeer tells how a datagram socket came to its peer, and refuses what
// could not have come about at once.
func (c *Capturer) datagramPeer(d *description, u *sockdiag.Unix) error {
	s := d.socket
	mutual := s.PeerGone && s.Local == nil
	if s.Peer >= 0 {
		other, err := c.unixOf(&c.descriptions[s.Peer])
		if err != nil {
			return err
		}
		mutual = other.Peer == u.Inode && (len(other.Name) == 0 || len(u.Name) == 0 || s.Unix.Credentials != nil)
	}
	switch {
	case mutual && s.Unix.Credentials != nil: // who has called socketpair(2): both have got names since
		s.Unix.Role = image.UnixPair
	case s.Remote == nil && !mutual:
		return c.refuse(d, "a unix datagram socket connected to one that has no name and is connected elsewhere", "close it")
	// Nobody can send to one without a name but the other end of its pair, which may
	// have got a name meanwhile.
	case mutual && (s.Remote == nil || s.Local == nil && (s.Peer >= 0 || len(s.Queue) > 0)):
		s.Unix.Role = image.UnixPair
	default:
		s.Unix.Role = image.UnixClient
	}
	return nil
}

// mostOfName is how long a name may be that a unix socket is found by (unix(7)), in bytes.
const mostOfName = 107

// senders refuses datagrams that nobody could send again.
func (unixFamily) senders(c *Capturer, d *description) error {
	s := d.socket
	for i := range s.Queue {
		from := s.Queue[i].From
		switch {
		case s.Unix.Role != image.UnixPlain:
			if !bytes.Equal(from, s.Remote) {
				return c.refuse(d, "a unix datagram socket with unread messages from before it was connected", "let it read them")
			}
		case from != nil && c.bound(from) < 0:
			return c.refuse(d, "a unix datagram socket with an unread message from a socket that was closed", "let it read that")
		case s.Local == nil || s.Unix.Gone || len(path.Base(s.Unix.Path)) > mostOfName:
			return c.refuse(d, "a unix datagram socket with unread messages that has no name any more that one could send to", "let it read them")
		}
	}
	return nil
}

// bound finds the unix datagram socket that has an address, or -1.
func (c *Capturer) bound(address []byte) int {
	for i := range c.descriptions {
		d := &c.descriptions[i]
		if d.socket == nil || d.socket.Domain != unix.AF_UNIX || d.socket.Type != unix.SOCK_DGRAM {
			continue
		}
		if local, err := addressFrom(d.fd, unix.SYS_GETSOCKNAME); err == nil && bytes.Equal(local, address) {
			return i
		}
	}
	return -1
}

func sameName(a, b *sockdiag.Unix) bool {
	return a.Type == b.Type && a.FileInode == b.FileInode && a.FileDevice == b.FileDevice && bytes.Equal(a.Name, b.Name)
}

// nameSocket notes the name that a socket has, alone or with others.
func (c *Capturer) nameSocket(d *description, u *sockdiag.Unix) error {
	s := d.socket
	at := slices.IndexFunc(c.names, func(n socketName) bool {
		return n.inode == u.FileInode && n.dev == u.FileDevice && n.kind == u.Type && (u.FileInode != 0 || bytes.Equal(n.abstract, u.Name))
	})
	if at < 0 {
		at = len(c.names)
		c.names = append(c.names, socketName{abstract: u.Name, kind: u.Type, inode: u.FileInode, dev: u.FileDevice})
	}
	s.Unix.Name = at + 1
	if u.FileInode == 0 {
		return nil
	}
	n := &c.names[at]
	if !n.known {
		if err := c.locateName(d, n, string(u.Name)); err != nil {
			return err
		}
		n.known = true
	}
	m, err := c.idsOf(d.proc)
	if err != nil {
		return err
	}
	s.Unix.Path, s.Unix.Base, s.Unix.Gone = n.path, n.base, n.gone
	s.Unix.FileModified = n.place.stat.Mtim
	s.Unix.FileAttributes = xattr.Renumber(n.attributes, m.users.number, m.groups.number)
	s.Unix.FileMode, s.Unix.FileUID, s.Unix.FileGID = n.place.stat.Mode&0o7777, m.users.in(int(n.place.stat.Uid)), m.groups.in(int(n.place.stat.Gid))
	return nil
}

// locateName finds the file of a name, and where the address leads to it from.
func (c *Capturer) locateName(d *description, n *socketName, address string) error {
	fd, err := unix.IoctlRetInt(d.fd, sioUnixFile)
	if err != nil {
		return fmt.Errorf("file of the name %s: %w", address, err)
	}
	defer unix.Close(fd)
	n.place = description{fd: fd, proc: d.proc, num: d.num}
	if err := unix.Fstat(fd, &n.place.stat); err != nil {
		return fmt.Errorf("file of the name %s: %w", address, err)
	}
	if n.path, n.gone, err = c.locate(&n.place); err != nil {
		return err
	}
	if n.place.stat.Nlink > 1 {
		return c.refuse(d, "a unix socket whose file "+n.path+" has another name (link(2))", "remove that name")
	}
	if n.attributes, err = xattr.Read(procFD(fd)); err != nil {
		return fmt.Errorf("attributes of the file of the name %s: %w", address, err)
	}
	link, err := c.linkOf(&n.place)
	if err != nil {
		return err
	}
	// A file that was renamed is bound anew under its address and renamed
	// again.
	if !strings.HasPrefix(address, "/") {
		at := strings.TrimSuffix(link, deletedSuffix)
		base, ok := strings.CutSuffix(at, "/"+path.Clean(address))
		if !ok || strings.HasPrefix(path.Clean(address), "..") {
			// It was renamed since, or begins with "..": its process may still
			// be where it was.
			base = c.workingDirectory(d.proc)
		}
		if n.base = base; base == "" {
			n.base = "/"
		}
	}
	place := n.path
	if n.gone {
		place = ""
	}
	return c.refuseUnbindable(d, n.base, address, place)
}

func (c *Capturer) workingDirectory(proc int) string {
	var b [unix.PathMax]byte
	n, err := unix.Readlink(fmt.Sprintf("/proc/%d/cwd", c.procs[proc].HostPID), b[:])
	if err != nil {
		return "/"
	}
	return string(b[:n])
}
