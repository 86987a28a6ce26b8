package acceptqueue

import (
	"encoding/binary"
	"fmt"
)

// Unix is a connection that waits to be accepted in a unix socket.
type Unix struct {
	// Client has connected. PID is 0 if it has ended.
	Client Sender
	// Address is the client's, a struct sockaddr_un; nil if it has none.
	Address []byte
	// Unread are the messages that it has received.
	Unread []Message
}

// Message is one of a connection's.
type Message struct {
	Data   []byte
	Sender *Sender // nil: it is not known
	// Files: descriptors come with it. They cannot be had this way.
	Files bool
}

// Sender is a process, in the numbers of this one.
type Sender struct {
	PID      int
	UID, GID uint32
}

// Unix reads the connections that wait in a listening unix socket, in the order
// in which they will be accepted, with at most limit bytes ([ErrTooMuch]).
func (r *Reader) Unix(fd int, limit int64) (out []Unix, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sk, err := r.sock(fd)
	if err != nil {
		return nil, err
	}
	// Each waits as a buffer that belongs to the new socket.
	err = r.queue(sk+uint64(r.at.sockQueue), func(b buffer) error {
		c, err := r.unix(b.sock, &limit)
		out = append(out, c)
		return err
	})
	return out, err
}

// unixAddress is the name of a socket's other end.
func (r *Reader) unixAddress(sk uint64) ([]byte, error) {
	const most = 110 // struct sockaddr_un
	at := sk
	for _, offset := range []int{r.at.unixPeer, r.at.unixAddress} {
		var err error
		if at, err = r.pointer(at + uint64(offset)); err != nil || at == 0 {
			return nil, err
		}
	}
	b, err := r.read(at+uint64(r.at.addressLen), 4)
	if err != nil {
		return nil, err
	}
	n := int(binary.NativeEndian.Uint32(b))
	if n < 0 || n > most {
		return nil, fmt.Errorf("a name of %d bytes", n)
	}
	return r.read(at+uint64(r.at.addressName), n)
}

// unix reads one.
func (r *Reader) unix(sk uint64, limit *int64) (c Unix, err error) {
	b, err := r.read(sk, r.at.sockSize)
	if err != nil {
		return c, err
	}
	if c.Client.PID, err = r.number(binary.NativeEndian.Uint64(b[r.at.sockPeerPID:])); err != nil {
		return c, err
	}
	cred := binary.NativeEndian.Uint64(b[r.at.sockPeerCred:])
	for offset, to := range map[int]*uint32{r.at.credUID: &c.Client.UID, r.at.credGID: &c.Client.GID} {
		v, err := r.read(cred+uint64(offset), 4)
		if err != nil {
			return c, err
		}
		*to = binary.NativeEndian.Uint32(v)
	}
	if c.Address, err = r.unixAddress(sk); err != nil {
		return c, err
	}
	count := int(binary.NativeEndian.Uint32(b[r.at.sockQueue+16:])) // qlen, behind two pointers
	err = r.queue(sk+uint64(r.at.sockQueue), func(b buffer) error {
		if *limit -= int64(b.len); *limit < 0 {
			return ErrTooMuch
		}
		m := Message{Files: binary.NativeEndian.Uint64(b.control[r.at.unixFiles:]) != 0}
		var err error
		if m.Data, err = r.content(b); err != nil {
			return err
		}
		if pid := binary.NativeEndian.Uint64(b.control[r.at.unixPID:]); pid != 0 {
			m.Sender = &Sender{
				UID: binary.NativeEndian.Uint32(b.control[r.at.unixUID:]), GID: binary.NativeEndian.Uint32(b.control[r.at.unixGID:]),
			}
			if m.Sender.PID, err = r.number(pid); err != nil {
				return err
			}
		}
		c.Unread = append(c.Unread, m)
		return nil
	})
	if err == nil && count != len(c.Unread) {
		err = fmt.Errorf("%d messages in a queue of %d", len(c.Unread), count)
	}
	return c, err
}
