package sockdiag

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Unix is what the kernel says of a unix socket (linux/unix_diag.h).
type Unix struct {
	Inode uint32 // of the socket; 0 for one that waits to be accepted, or is in no file
	Type  uint8
	State uint8 // TCP_ESTABLISHED and its like
	// Name is its name as in sun_path, without the NUL at a path's end.
	Name []byte
	// FileInode and FileDevice are those of the file it is bound to, as the
	// kernel keeps them (not as stat(2) of an overlay has them), else 0.
	FileInode, FileDevice uint32
	// HasPeer: it was connected. Peer is the inode of the other end, or 0
	// if that was closed or waits to be accepted.
	HasPeer bool
	Peer    uint32
	// Waiting are the inodes of the sockets whose connections wait to be
	// accepted, in order; 0 for those that were closed since.
	Waiting []uint32
	// Unread is how many bytes can be read (datagrams: of the first); of a
	// listening socket, how many connections wait.
	Unread uint32
	// Unsent is how many bytes were sent and not yet read; of a listening
	// socket, its backlog.
	Unsent uint32
	// Shutdown has 1 if it receives no more, and 2 if it sends no more.
	Shutdown uint8
}

// Attributes and requests of linux/unix_diag.h.
const (
	unixDiagName     = 0
	unixDiagVFS      = 1
	unixDiagPeer     = 2
	unixDiagIcons    = 3
	unixDiagRQLen    = 4
	unixDiagShutdown = 6

	unixShow     = 0x1 | 0x2 | 0x4 | 0x8 | 0x10
	unixDiagSize = 16 // struct unix_diag_msg
)

// Unix lists all unix sockets.
func (c *Conn) Unix() (all []Unix, err error) {
	r := []byte{unix.AF_UNIX, 0, 0, 0}                  // family, protocol, pad
	r = binary.NativeEndian.AppendUint32(r, ^uint32(0)) // states
	r = binary.NativeEndian.AppendUint32(r, 0)          // inode
	r = binary.NativeEndian.AppendUint32(r, unixShow)   // what to show
	r = binary.NativeEndian.AppendUint64(r, ^uint64(0)) // cookie
	err = c.dump("unix", r, func(body []byte) error {
		u, err := parseUnix(body)
		if err == nil {
			all = append(all, u)
		}
		return err
	})
	return all, err
}

func parseUnix(b []byte) (u Unix, err error) {
	if len(b) < unixDiagSize {
		return u, fault.New(fault.Internal, "%d bytes about a unix socket", len(b))
	}
	u = Unix{Type: b[1], State: b[2], Inode: word(b[4:])}
	attributes(b[unixDiagSize:], func(typ uint16, v []byte) {
		switch typ {
		case unixDiagName:
			u.Name = append([]byte(nil), v...)
		case unixDiagVFS:
			if len(v) >= 8 {
				u.FileInode, u.FileDevice = word(v), word(v[4:])
			}
		case unixDiagPeer:
			u.HasPeer, u.Peer = true, word(v)
		case unixDiagIcons:
			for ; len(v) >= 4; v = v[4:] {
				u.Waiting = append(u.Waiting, word(v))
			}
		case unixDiagRQLen:
			if len(v) >= 8 {
				u.Unread, u.Unsent = word(v), word(v[4:])
			}
		case unixDiagShutdown:
			if len(v) >= 1 {
				u.Shutdown = v[0]
			}
		}
	})
	return u, nil
}
