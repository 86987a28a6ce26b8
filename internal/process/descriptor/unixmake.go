package descriptor

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// place of a name that is bound anew.
type binding struct {
	owner   *made         // who binds
	file    int           // whose socket that is, or -1
	socket  *image.Socket // of the owner or one that shares the name
	address []byte
	clients []client
	listen  bool
	gone    bool // its file has to be deleted
	passes  bool // its clients are gone, and are closed as soon as they have sent what they had
}

// client is a connection to a binding.
type client struct {
	from     *made
	as       *image.Peer
	file     int // the socket that accepting gives, -1: none of a process
	leftOf   int // the socket that is left if the accepted end was closed, -1: none
	accepted bool
	name     []byte // to bind it to first, or nil
}

// makeUnix makes all unix sockets, bound and connected as they were.
func (w *workshop) makeUnix() error {
	if err := w.createUnix(); err != nil {
		return err
	}
	all, err := w.bindings()
	if err != nil {
		return err
	}
	// What a deleted file was bound to comes first: another socket may have its
	// path now.
	slices.SortStableFunc(all, func(a, b *binding) int { return boolInt(b.gone) - boolInt(a.gone) })
	for _, b := range all {
		if err := w.bind(b); err != nil {
			return fmt.Errorf("bind a unix socket to %s: %w", printable(b.address), err)
		}
	}
	for i, f := range w.files {
		if f.Socket == nil || f.Socket.Unix == nil {
			continue
		}
		if err := w.give(i); err != nil {
			return err
		}
	}
	return nil
}

// createUnix makes those that are not accepted by another.
func (w *workshop) createUnix() error {
	for i, f := range w.files {
		s := f.Socket
		if s == nil || s.Unix == nil || w.have[i] != nil {
			continue
		}
		var err error
		switch s.Unix.Role {
		case image.UnixAccepted:
		case image.UnixPair:
			k := w.creator(s.Unix.Credentials, i)
			var other *made
			if w.have[i], other, err = k.pair(s, s.Unix.Credentials); err == nil && s.Peer >= 0 {
				w.have[s.Peer] = other
			} else if err == nil {
				w.lost[i] = other
				err = w.keepGone(i, other)
			}
		default:
			w.have[i], err = w.connector(i).socket(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// connector is the worker that makes a socket: of a client, who has called
// connect.
func (w *workshop) connector(file int) *worker {
	s := w.files[file].Socket
	switch {
	case s.State == stateListen:
		return w.creator(s.Unix.Credentials, file)
	case s.Unix.Role == image.UnixClient && s.Peer >= 0 && s.Type != unix.SOCK_DGRAM:
		return w.creator(w.files[s.Peer].Socket.Unix.Credentials, file)
	}
	return w.holder(file)
}

// keepGone fetches an end that was closed, to put unread data in by.
func (w *workshop) keepGone(left int, m *made) error {
	fd, err := m.fetch()
	if err == nil {
		w.gone[left] = fd
	}
	return err
}

// bindings are the names that are bound, with who connects to each.
func (w *workshop) bindings() ([]*binding, error) {
	byName, lost := map[int]*binding{}, []*binding{}
	have := w.abstractNames()
	var passing []*binding
	named := func(s *image.Socket) *binding {
		b := byName[s.Unix.Name]
		if b == nil {
			b = &binding{file: -1, socket: s, address: s.Local, gone: s.Unix.Gone}
			byName[s.Unix.Name] = b
		}
		return b
	}
	for i, f := range w.files {
		s := f.Socket
		if s == nil || s.Unix == nil {
			continue
		}
		if s.Local != nil {
			b := named(s)
			if s.Unix.Role != image.UnixAccepted {
				b.owner, b.file, b.socket, b.listen = w.have[i], i, s, s.State == stateListen
			}
		}
		if s.Unix.Role == image.UnixAccepted && s.PeerGone {
			// Somebody connects, and closes when all is in.
			from, err := w.creator(s.Unix.Credentials, i).socket(s)
			if err != nil {
				return nil, err
			}
			c := client{from: from, as: s.Unix.Credentials, file: i, leftOf: -1, accepted: true}
			w.gone[i] = -1 // fetched when it is connected
			w.have[i] = from
			if have[abstractName(s, s.Remote)] > 1 {
				c.name = s.Remote
				passing = append(passing, &binding{file: -1, socket: s, address: s.Local, clients: []client{c}, gone: true, passes: true})
				continue
			}
			b := named(s)
			b.clients = append(b.clients, c)
			if s.Remote != nil {
				lost = append(lost, lostName(from, s, s.Remote))
			}
		}
		if s.Unix.Role == image.UnixPair && s.PeerGone && s.Remote != nil { // its messages are from that name
			lost = append(lost, lostName(w.lost[i], s, s.Remote))
		}
		if s.Unix.Role != image.UnixClient {
			continue
		}
		c := client{from: w.have[i], file: -1, leftOf: -1}
		switch {
		case s.Peer >= 0 && s.Type == unix.SOCK_DGRAM:
			b := named(w.files[s.Peer].Socket)
			b.clients = append(b.clients, c)
		case s.Peer >= 0:
			c.as, c.file, c.accepted = w.files[s.Peer].Socket.Unix.Credentials, s.Peer, true
			b := named(w.files[s.Peer].Socket)
			b.clients = append(b.clients, c)
		case s.PeerGone:
			c.leftOf, c.accepted = i, s.Type != unix.SOCK_DGRAM
			lost = append(lost, &binding{file: -1, socket: s, address: s.Remote, clients: []client{c}, gone: true})
		}
	}
	// Those whose connections wait come last, in their order.
	for i, f := range w.files {
		if s := f.Socket; s != nil && s.Unix != nil && s.State == stateListen {
			more, err := w.queueWaiting(named(s), i, s)
			if err != nil {
				return nil, err
			}
			lost = append(lost, more...)
		}
	}
	all := append(passing, lost...)
	for n := 1; len(byName) > 0; n++ {
		if b := byName[n]; b != nil {
			all = append(all, b.inTurn()...)
			delete(byName, n)
		}
	}
	return all, nil
}

// lostName has a socket that is closed in the end bound to the name that it had.
func lostName(m *made, s *image.Socket, address []byte) *binding {
	return &binding{owner: m, file: -1, socket: s, address: address, gone: true}
}

// queueWaiting adds the clients that wait to be accepted. It returns the names of
// those that were closed.
func (w *workshop) queueWaiting(b *binding, file int, s *image.Socket) (lost []*binding, err error) {
	for i, at := range s.Waiting {
		if at >= 0 {
			as := &image.Peer{UID: w.files[at].Socket.UID, GID: w.files[at].Socket.GID}
			b.clients = append(b.clients, client{from: w.have[at], as: as, file: -1, leftOf: -1})
			continue
		}
		e := earlyOf(s, i)
		from, err := w.creator(e.Client, file).socket(s)
		if err != nil {
			return nil, err
		}
		if len(e.Address) > 0 {
			lost = append(lost, lostName(from, s, e.Address))
		}
		if w.closed[file] == nil {
			w.closed[file] = map[int]*made{}
		}
		w.closed[file][i] = from
		b.clients = append(b.clients, client{from: from, as: e.Client, file: -1, leftOf: -1})
	}
	return lost, nil
}

// bind binds a name, lets its clients connect, and accepts them.
func (w *workshop) bind(b *binding) (err error) {
	owned := b.owner != nil
	if !owned { // who listened is gone; its connections are not
		k := w.workers[0]
		if b.socket.Unix.Credentials != nil && len(b.clients) > 0 && b.clients[0].leftOf >= 0 {
			k = w.creator(b.socket.Unix.Credentials, b.clients[0].leftOf)
		}
		if b.owner, err = k.socket(b.socket); err != nil {
			return err
		}
	}
	k := b.owner.w
	if err := k.room(); err != nil {
		return err
	}
	at, err := w.prepareName(k, b)
	defer at.close()
	if err != nil {
		return err
	}
	k.call(unix.SYS_BIND, b.owner, b.address, len(b.address))
	stream := b.socket.Type != unix.SOCK_DGRAM
	if stream && (b.listen || !owned) {
		as := b.socket.Unix.Credentials
		if !owned && b.clients != nil && b.clients[0].from != nil {
			as = w.listenerOf(b)
		}
		backlog := max(b.socket.Backlog, 1<<12)
		if b.listen && len(b.clients) == 0 {
			backlog = b.socket.Backlog
		}
		k.as(as, func() { k.call(unix.SYS_LISTEN, b.owner, backlog) })
	}
	if err := k.flush(); err != nil {
		return err
	}
	if err := w.connectAll(b, at); err != nil {
		return err
	}
	if b.passes {
		if err := w.pass(b.clients); err != nil {
			return err
		}
	}
	if err := k.room(); err != nil {
		return err
	}
	if b.listen && len(b.clients) > 0 {
		k.as(b.socket.Unix.Credentials, func() { k.call(unix.SYS_LISTEN, b.owner, b.socket.Backlog) })
	}
	if err := w.finishName(k, b, at); err != nil {
		return err
	}
	if !owned {
		// Its number is used no more; it is closed with all others. But nobody
		// shall reach it by its name.
		k.call(unix.SYS_SHUTDOWN, b.owner, unix.SHUT_RDWR)
		k.call(unix.SYS_DUP3, k.Control, b.owner, unix.O_CLOEXEC)
	}
	if err := k.flush(); err != nil {
		return err
	}
	if !owned && b.owner.fd >= 0 {
		_ = unix.Close(b.owner.fd)
	}
	return at.settle()
}

// listenerOf is who listened at a name that nobody listens at any more.
func (w *workshop) listenerOf(b *binding) *image.Peer {
	for _, c := range b.clients {
		for i, m := range w.have {
			if m == c.from && w.files[i].Socket.Unix.Role == image.UnixClient {
				return w.files[i].Socket.Unix.Credentials
			}
		}
	}
	return nil
}

// connectAll connects the clients of a binding and accepts them in turn.
func (w *workshop) connectAll(b *binding, at *nameAt) error {
	var waiting []*client // for being accepted
	var last *worker
	accept := func() error {
		if last == nil {
			return nil
		}
		if err := last.flush(); err != nil {
			return err
		}
		for _, c := range waiting {
			if err := w.accept(b, c); err != nil {
				return err
			}
		}
		waiting, last = nil, nil
		return nil
	}
	options := false // those of who listens, which connections inherit when they come about
	for i := range b.clients {
		c := &b.clients[i]
		k := c.from.w
		if waits := b.listen && !c.accepted; waits && !options {
			if err := accept(); err != nil {
				return err
			}
			fd, err := b.owner.fetch()
			if err != nil {
				return err
			}
			if err := setOptions(fd, b.socket, false); err != nil {
				return err
			}
			options = true
		}
		if k != last || k.batch == nil || k.batch.Full(48, 4096) || len(waiting) > 256 {
			if err := accept(); err != nil {
				return err
			}
			if err := k.room(); err != nil {
				return err
			}
		}
		if at.base != "" {
			k.call(unix.SYS_CHDIR, at.base)
		}
		if c.name != nil {
			k.call(unix.SYS_BIND, c.from, c.name, len(c.name))
		}
		k.as(c.as, func() { k.call(unix.SYS_CONNECT, c.from, b.address, len(b.address)) })
		last = k
		waiting = append(waiting, c)
	}
	return accept()
}

// accept takes what came of a client's connecting.
func (w *workshop) accept(b *binding, c *client) error {
	if _, gone := w.gone[c.file]; gone && c.file >= 0 {
		fd, err := c.from.fetch()
		if err != nil {
			return err
		}
		w.gone[c.file] = fd
		delete(w.have, c.file)
	}
	if !c.accepted {
		return nil
	}
	listener, err := b.owner.fetch()
	if err != nil {
		return err
	}
	fd, err := acceptFrom(listener)
	if err != nil {
		return fmt.Errorf("accept a connection: %w", err)
	}
	switch {
	case c.file >= 0:
		w.fd[c.file] = fd
	case c.leftOf >= 0:
		w.gone[c.leftOf] = fd
	default:
		_ = unix.Close(fd)
	}
	return nil
}

// acceptFrom accepts a connection that is there.
func acceptFrom(listener int) (int, error) {
	p := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
	if n, err := poll(p, acceptPatience); err != nil || n == 0 {
		return -1, fmt.Errorf("no connection came: %v", err)
	}
	fd, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(listener), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

// acceptPatience is how long a connection may take to come, in milliseconds:
// it is there already, or nearly.
const acceptPatience = 2000
