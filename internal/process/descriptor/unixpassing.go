package descriptor

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// The other end of a connection that is gone may have had an abstract name that another
// socket has now: a client that comes again by the same name before its old connection
// is closed. What is gone comes first then, with all that it has sent, and ends
// before the next one has its name. So it is with the name of a listener that is gone: the
// connections that it accepted have its name still, and another socket may have bound it.

// abstractName is an abstract name with the type of its socket: each has names of its own.
func abstractName(s *image.Socket, address []byte) string {
	if len(address) < 3 || address[2] != 0 {
		return ""
	}
	return string([]byte{byte(s.Type)}) + string(address)
}

// abstractNames counts who has an abstract name, or had it and is gone.
func (w *workshop) abstractNames() map[string]int {
	have := map[string]int{}
	for _, f := range w.files {
		s := f.Socket
		if s == nil || s.Unix == nil {
			continue
		}
		have[abstractName(s, s.Local)]++
		if s.PeerGone && s.Unix.Role != image.UnixClient {
			have[abstractName(s, s.Remote)]++
		}
		for i := range s.Waiting {
			have[abstractName(s, earlyOf(s, i).Address)]++
		}
	}
	delete(have, "")
	return have
}

// inTurn has who listened at an abstract name first, and who has it since and does not listen
// behind it.
func (b *binding) inTurn() []*binding {
	if b.owner == nil || b.listen || b.socket.Type == unix.SOCK_DGRAM || len(b.clients) == 0 {
		return []*binding{b}
	}
	before := &binding{file: -1, socket: b.socket, address: b.address, clients: b.clients}
	b.clients = nil
	return []*binding{before, b}
}

// pass has clients that are gone send what they have sent, and closes them.
func (w *workshop) pass(clients []client) error {
	for _, c := range clients {
		s, gone := w.files[c.file].Socket, w.gone[c.file]
		if err := w.sendAll(gone, nil, s.Queue); err != nil {
			return err
		}
		w.passed[c.file] = true
		delete(w.gone, c.file)
		w.finishGone(w.fd[c.file], gone, s)
		k := c.from.w
		if err := k.room(); err != nil {
			return err
		}
		k.call(unix.SYS_DUP3, k.Control, c.from, unix.O_CLOEXEC) // its number is used no more
		if err := k.flush(); err != nil {
			return err
		}
	}
	return nil
}

// finishGone closes the other end of a socket that was closed.
func (w *workshop) finishGone(fd, gone int, s *image.Socket) {
	if s.Failed { // closed with unread data
		_, _ = sendMessage(fd, []byte{0}, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	_ = unix.Close(gone)
}

// refuseUsedName refuses the abstract name of an end that is gone and that another socket
// has, or had too, if it could not be had by both in turn. passes: what the end has
// sent can be sent before there is anything else.
func (c *Capturer) refuseUsedName(d *description, address []byte, passes bool) error {
	name := abstractName(d.socket, address)
	if name == "" {
		return nil
	}
	before, used := c.lost[name]
	passes = passes && (before || !used)
	for i := range c.unix {
		e := &c.unix[i]
		used = used || int(e.Type) == d.socket.Type && e.FileInode == 0 && bytes.Equal(e.Name, address[2:])
	}
	if used && !passes {
		return c.refuse(d, "a unix socket whose other end was closed and had the name "+printable(address)+", which another one has or had, too,",
			"let it read what came from there, and close it").Passing()
	}
	if c.lost == nil {
		c.lost = map[string]bool{}
	}
	c.lost[name] = passes
	return nil
}
