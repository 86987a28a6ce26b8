package descriptor

import (
	"encoding/binary"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
	"github.com/sandtree/sandtree/internal/process/image"
)

// fillQueues puts unread data back, from the other ends.
func (w *workshop) fillQueues() error {
	for i, f := range w.files {
		if f.Socket == nil || f.Socket.Unix == nil {
			continue
		}
		if err := w.fillUnix(i, f.Socket); err != nil {
			return fmt.Errorf("put unread data back into a socket: %w", err)
		}
		if err := w.fillEarly(i, f.Socket); err != nil {
			return fmt.Errorf("put data back that came before a connection was accepted: %w", err)
		}
	}
	return nil
}

// fillUnix sends what a unix socket had received.
func (w *workshop) fillUnix(file int, s *image.Socket) error {
	if len(s.Queue) == 0 || w.passed[file] {
		return nil
	}
	if s.Unix.Role == image.UnixPlain {
		return w.fillByName(file, s)
	}
	from, gone := w.gone[file]
	if s.Peer >= 0 {
		from = w.fd[s.Peer]
	} else if !gone {
		return fmt.Errorf("one of type %d at %s, connected to %s, has no other end (%s, closed: %t)", s.Type, printable(s.Local), printable(s.Remote), s.Unix.Role, s.PeerGone)
	}
	return w.sendAll(from, nil, s.Queue)
}

// fillByName sends datagrams to a socket's address: it is connected to nobody.
func (w *workshop) fillByName(_ int, s *image.Socket) error {
	to, dir := s.Local, ""
	if p, ok := sunPath(s.Local); ok && s.Unix.Path != p { // from its directory: the path may be longer than an address
		to, dir = append([]byte{unix.AF_UNIX, 0}, append([]byte(path.Base(s.Unix.Path)), 0)...), path.Dir(s.Unix.Path)
	}
	for i := range s.Queue {
		m := &s.Queue[i]
		var from int
		if at := w.boundTo(m.From); at >= 0 {
			from = w.fd[at]
		} else {
			var err error
			if from, err = w.passing(s); err != nil {
				return err
			}
		}
		err := inRootOf(w.target.Root, dir, func() error { return w.sendAll(from, to, s.Queue[i:i+1]) })
		if err != nil {
			return err
		}
	}
	return nil
}

// boundTo finds the datagram socket that has an address.
func (w *workshop) boundTo(address []byte) int {
	for i, f := range w.files {
		if s := f.Socket; address != nil && s != nil && s.Unix != nil && s.Type == unix.SOCK_DGRAM && string(s.Local) == string(address) {
			return i
		}
	}
	return -1
}

// passing makes a socket without a name that is not needed in the end.
func (w *workshop) passing(s *image.Socket) (int, error) {
	m, err := w.workers[0].socket(s)
	if err != nil {
		return -1, err
	}
	fd, err := m.fetch()
	if err == nil {
		w.temps = append(w.temps, fd)
	}
	return fd, err
}

// inRootOf runs f on a thread whose root is the sandbox's and whose directory
// is dir in it.
func inRootOf(root int, dir string, f func() error) error {
	return thread.Own(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Fchdir(root); err != nil {
			return fmt.Errorf("fchdir: %w", err)
		}
		if err := unix.Chroot("."); err != nil {
			return fmt.Errorf("chroot: %w", err)
		}
		if dir != "" {
			if err := unix.Chdir(dir); err != nil {
				return fmt.Errorf("chdir %s: %w", dir, err)
			}
		}
		return f()
	})
}

// sendAll sends messages by a socket whose buffer is made large enough for the
// time.
func (w *workshop) sendAll(from int, to []byte, queue []image.Message) error {
	size := 1 << 16
	for i := range queue {
		size += 2*len(queue[i].Data) + 2048
	}
	buffer, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return fmt.Errorf("SO_SNDBUF: %w", err)
	}
	if err := unix.SetsockoptInt(from, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, max(size, buffer/2)); err != nil {
		return fmt.Errorf("SO_SNDBUFFORCE: %w", err)
	}
	for i := range queue {
		if err := w.send(from, to, &queue[i]); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(from, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer/2); err != nil {
		return fmt.Errorf("SO_SNDBUFFORCE: %w", err)
	}
	return nil
}

func (w *workshop) send(from int, to []byte, m *image.Message) error {
	var control []byte
	if len(m.Files) > 0 {
		fds := make([]int, len(m.Files))
		for i, f := range m.Files {
			if fds[i] = w.fd[f]; fds[i] < 0 {
				return fmt.Errorf("a descriptor on its way (%s) was not opened", w.files[f].Kind)
			}
		}
		control = unix.UnixRights(fds...)
	}
	if m.Sender != nil {
		control = append(control, w.credentials(m.Sender)...)
	}
	for data := m.Data; ; {
		n, err := sendMessage(from, data, to, control, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != nil {
			return fmt.Errorf("send %d bytes: %w", len(data), err)
		}
		if data, control = data[n:], nil; len(data) == 0 {
			return nil
		}
	}
}

// credentials is a control message that says who sent a message.
func (w *workshop) credentials(p *image.Peer) []byte {
	pid := os.Getpid() // which nobody inside can see
	for _, k := range w.workers {
		if k.PID == p.PID {
			pid = k.Host
		}
	}
	u := unix.Ucred{Pid: int32(pid), Uid: uint32(w.ids.users.out(p.UID)), Gid: uint32(w.ids.groups.out(p.GID))}
	return unix.UnixCredentials(&u)
}

// finishSockets sets what would have been in the way before.
func (w *workshop) finishSockets() error {
	for i, f := range w.files {
		s := f.Socket
		if s == nil {
			continue
		}
		if err := w.finishSocket(i, f); err != nil {
			return fmt.Errorf("restore a socket: %w", err)
		}
	}
	return nil
}

func (w *workshop) finishSocket(file int, f *image.File) error {
	fd, s := w.fd[file], f.Socket
	if s.Unix != nil {
		if gone, ok := w.gone[file]; ok {
			w.finishGone(fd, gone, s)
			delete(w.gone, file)
		}
		if how, ok := shutdowns[s.Shutdown]; ok && s.State != stateListen && s.Unix.Role != image.UnixPlain {
			if err := unix.Shutdown(fd, how); err != nil && err != unix.ENOTCONN {
				return fmt.Errorf("shutdown: %w", err)
			}
		}
		if err := setOptions(fd, s, true); err != nil {
			return err
		}
	}
	if gone, ok := w.gone[file]; ok && s.TCP != nil {
		delete(w.gone, file)
		if err := finishTCP(fd, gone, s); err != nil {
			return err
		}
	}
	if err := setOptions(fd, s, false); err != nil {
		return err
	}
	if err := restoreBuffers(fd, s); err != nil {
		return err
	}
	if len(s.Filter) > 0 {
		if err := attachFilter(fd, s.Filter); err != nil {
			return fmt.Errorf("attach a filter: %w", err)
		}
	}
	if err := unix.Fchown(fd, w.ids.users.out(s.UID), w.ids.groups.out(s.GID)); err != nil {
		return fmt.Errorf("fchown: %w", err)
	}
	now, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err == nil && (now^f.Flags)&settable != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, now&^settable|f.Flags&settable)
	}
	if err != nil {
		return fmt.Errorf("set flags %#o: %w", f.Flags, err)
	}
	return nil
}

// shutdowns are the arguments of shutdown(2) by what is shut.
var shutdowns = map[int]int{shutReceive: unix.SHUT_RD, shutSend: unix.SHUT_WR, shutReceive | shutSend: unix.SHUT_RDWR}

// readIDs reads the id maps of a process.
func readIDs(host int) (*ids, error) {
	var m ids
	for name, to := range map[string]*idMap{"uid_map": &m.users, "gid_map": &m.groups} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", host, name))
		if err == nil {
			*to, err = parseIDMap(text)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return &m, nil
}

func int32Bytes(v int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }
