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
	// Files are what comes with it: what [Reader.Files] tells of the descriptors that
	// are open elsewhere. No others can be had this way.
	Files []File
}

// File is an open file description, by which it is known again while it is open. It
// says nothing else.
type File uint64

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
		var m Message
		var err error
		if list := binary.NativeEndian.Uint64(b.control[r.at.unixFiles:]); list != 0 {
			if m.Files, err = r.carried(list); err != nil {
				return err
			}
		}
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

// carried are the descriptions in a struct scm_fp_list.
func (r *Reader) carried(list uint64) ([]File, error) {
	const most = 253 // SCM_MAX_FD
	b, err := r.read(list+uint64(r.at.listCount), 2)
	if err != nil {
		return nil, err
	}
	n := int(int16(binary.NativeEndian.Uint16(b)))
	if n <= 0 || n > most {
		return nil, fmt.Errorf("%d descriptors with a message", n)
	}
	return r.files(list+uint64(r.at.listFiles), n)
}

// files are pointers, one behind the other.
func (r *Reader) files(at uint64, n int) ([]File, error) {
	b, err := r.read(at, 8*n)
	if err != nil {
		return nil, err
	}
	out := make([]File, n)
	for i := range out {
		out[i] = File(binary.NativeEndian.Uint64(b[8*i:]))
	}
	return out, nil
}

// Files tells the descriptions of this process's open descriptors.
func (r *Reader) Files(fds []int) ([]File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	table, err := r.table()
	if err != nil {
		return nil, err
	}
	out := make([]File, len(fds))
	for i, fd := range fds {
		f, err := r.files(table+uint64(8*fd), 1)
		if err != nil {
			return nil, err
		}
		out[i] = f[0]
	}
	return out, nil
}
