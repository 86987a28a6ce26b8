package tracee

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrGone is the error of requests to a stub that has ended.
var ErrGone = errors.New("the stub has ended")

// Server is a stub that serves batches from its control socket, untraced. It is
// safe for use by many threads: one request is served at a time.
type Server struct {
	pid  int
	sock int // -1 after Close

	mu sync.Mutex // held for a whole request: memory and socket are shared
}

// NewServer speaks to the stub with the given pid, in the numbers of this
// process, over this side's end of its control socket, which it owns from now
// on. The stub has not said hello yet.
func NewServer(pid, sock int) *Server { return &Server{pid: pid, sock: sock} }

// PID is the stub's, in the numbers of this process.
func (s *Server) PID() int { return s.pid }

// report is what a stub says: a batch has ended (pid 0), or a child has.
type report struct {
	pid    int
	status unix.WaitStatus
}

// Hello waits for a new stub's first report. Before it nothing may be asked of
// it.
func (s *Server) Hello() error {
	r, err := s.receive(nil)
	if err == nil && r.pid != 0 {
		err = fmt.Errorf("the stub's first word is about process %d", r.pid)
	}
	return err
}

// Do runs a batch in the stub, sending it descriptors that the batch receives
// with [Batch.ReceiveFDs] as its first call. The error is that of the call that
// ended the batch, a [*CallError], or [ErrGone].
func (s *Server) Do(b *Batch, fds ...int) error {
	_, err := s.DoReceive(b, 0, fds...)
	return err
}

// DoReceive is Do for a batch that sends n descriptors back with
// [Batch.SendFDs]. If the batch fails, none is returned.
func (s *Server) DoReceive(b *Batch, n int, fds ...int) ([]int, error) {
	return s.exchange(b, n, fds, func() ([]int, error) {
		var got []int
		for {
			r, err := s.receive(&got)
			if err != nil {
				closeAll(got)
				return nil, err
			}
			if r.pid == 0 {
				return got, nil
			}
		}
	})
}

// exchange makes one request; answer waits for its end and returns the
// descriptors that came meanwhile.
func (s *Server) exchange(b *Batch, n int, fds []int, answer func() ([]int, error)) ([]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sock < 0 {
		return nil, ErrGone
	}
	// A batch that was sent without its descriptors would wait for them and
	// take the next request for them.
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return nil, fmt.Errorf("descriptor %d for process %d: %w", fd, s.pid, err)
		}
	}
	if *b.err != nil {
		return nil, *b.err // what was queued is too much; the stub is well
	}
	if err := b.load(s.pid); err != nil {
		return nil, s.gone(err)
	}
	var req [16]byte
	binary.LittleEndian.PutUint64(req[:], b.base)
	binary.LittleEndian.PutUint64(req[8:], uint64(len(b.ops)))
	if err := s.send(req[:], nil); err != nil {
		return nil, s.gone(err)
	}
	if len(fds) > 0 {
		if err := s.send([]byte{0}, fds); err != nil {
			_ = unix.Shutdown(s.sock, unix.SHUT_RDWR)
			return nil, s.gone(err)
		}
	}
	got, err := answer()
	if err != nil {
		return nil, s.gone(err)
	}
	err = b.collect(s.pid)
	for _, c := range b.kids.all {
		if e := c.results(s.pid); e != nil && err == nil {
			err = e
		}
	}
	if err == nil && len(got) != n {
		err = fmt.Errorf("stub %d sent %d descriptors, not %d", s.pid, len(got), n)
	}
	if err != nil {
		closeAll(got)
		return nil, err
	}
	return got, nil
}

// gone explains a failure that leaves the stub unusable.
func (s *Server) gone(err error) error {
	return fmt.Errorf("%w (process %d): %w", ErrGone, s.pid, err)
}

func (s *Server) send(b []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		if err := unix.Sendmsg(s.sock, b, oob, nil, unix.MSG_NOSIGNAL); err != unix.EINTR {
			return err
		}
	}
}

// sentFDs is the pid of the message that carries descriptors.
const sentFDs = -1

// receive takes the next report. Descriptors that came before it are appended
// to fds.
func (s *Server) receive(fds *[]int) (report, error) {
	return receiveReport(fds, func(m, oob []byte) (n, on int, err error) {
		for {
			n, on, _, _, err = unix.Recvmsg(s.sock, m, oob, unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				return n, on, err
			}
		}
	})
}

// receiveReport is receive over any way to read one message.
func receiveReport(fds *[]int, recvmsg func(m, oob []byte) (n, on int, err error)) (report, error) {
	var m [8]byte
	var oob [4096]byte
	for {
		n, on, err := recvmsg(m[:], oob[:])
		if err != nil {
			return report{}, err
		}
		got, err := rights(oob[:on])
		if err != nil {
			return report{}, err
		}
		if fds == nil {
			closeAll(got)
		} else {
			*fds = append(*fds, got...)
		}
		if n != len(m) {
			return report{}, fmt.Errorf("a report of %d bytes", n)
		}
		r := report{int(int32(binary.LittleEndian.Uint32(m[:]))), unix.WaitStatus(binary.LittleEndian.Uint32(m[4:]))}
		if r.pid == sentFDs {
			continue
		}
		return r, nil
	}
}

func rights(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range ms {
		if ms[i].Header.Level != unix.SOL_SOCKET || ms[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		f, err := unix.ParseUnixRights(&ms[i])
		if err != nil {
			return nil, err
		}
		fds = append(fds, f...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Close ends the conversation; the stub exits when it sees that. It does not
// wait for it: the stub's parent reaps it.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sock < 0 {
		return nil
	}
	err := unix.Close(s.sock)
	s.sock = -1
	return err
}

// Kill closes the server of a stub that is a child of this process, ends the
// stub and reaps it.
func (s *Server) Kill() {
	_ = s.Close()
	reap(s.pid)
}
