package tracee

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Init is the PID 1 of an incarnation: a stub that also reports the children
// that it reaps. Reports are taken by a goroutine of its own, so that they come
// without a request being made.
type Init struct {
	s       *Server
	file    *os.File // a duplicate of the control socket, read through the runtime's poller
	done    chan struct{}
	batches chan []int // descriptors that came with the answer to a batch
	closing chan struct{}
	once    sync.Once // closes closing
}

// NewInit starts to take the reports of a stub that has said hello and been
// told to report exits; see [Batch.ReportExits]. Each is passed to onExit, on
// the Init's goroutine, with the pid inside.
func NewInit(s *Server, onExit func(pid int, status unix.WaitStatus)) (*Init, error) {
	// The duplicate shares the file status flags, so that the Server's own
	// descriptor does not block either; a request is far smaller than the
	// socket's buffer, and only one is under way.
	if err := unix.SetNonblock(s.sock, true); err != nil {
		return nil, fmt.Errorf("control socket of process %d: %w", s.pid, err)
	}
	fd, err := unix.FcntlInt(uintptr(s.sock), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("control socket of process %d: %w", s.pid, err)
	}
	i := &Init{s: s, file: os.NewFile(uintptr(fd), "control socket"), done: make(chan struct{}), batches: make(chan []int), closing: make(chan struct{})}
	conn, err := i.file.SyscallConn()
	if err != nil {
		i.file.Close()
		return nil, fmt.Errorf("control socket of process %d: %w", s.pid, err)
	}
	go i.listen(conn, onExit)
	return i, nil
}

func (i *Init) listen(conn syscall.RawConn, onExit func(int, unix.WaitStatus)) {
	defer close(i.done)
	var fds []int
	for {
		r, err := receiveReport(&fds, func(m, oob []byte) (n, on int, err error) {
			e := conn.Read(func(fd uintptr) bool {
				n, on, _, _, err = unix.Recvmsg(int(fd), m, oob, unix.MSG_CMSG_CLOEXEC)
				return err != unix.EAGAIN && err != unix.EINTR
			})
			if err == nil {
				err = e
			}
			return n, on, err
		})
		if err != nil {
			closeAll(fds)
			return
		}
		if r.pid != 0 {
			onExit(r.pid, r.status)
			continue
		}
		select {
		case i.batches <- fds:
			fds = nil
		case <-i.closing: // and nobody waits for the answer
			closeAll(fds)
			return
		}
	}
}

// PID is the stub's, in the numbers of this process.
func (i *Init) PID() int { return i.s.pid }

// Done is closed when the stub has ended.
func (i *Init) Done() <-chan struct{} { return i.done }

// Do is [Server.Do].
func (i *Init) Do(b *Batch, fds ...int) error {
	_, err := i.DoReceive(b, 0, fds...)
	return err
}

// DoReceive is [Server.DoReceive].
func (i *Init) DoReceive(b *Batch, n int, fds ...int) ([]int, error) {
	return i.s.exchange(b, n, fds, func() ([]int, error) {
		select {
		case got := <-i.batches:
			return got, nil
		case <-i.done:
			return nil, ErrGone
		}
	})
}

// Close ends the conversation: the stub exits, and its whole pid namespace
// with it.
func (i *Init) Close() error {
	i.once.Do(func() { close(i.closing) })
	err := unix.Shutdown(i.s.sock, unix.SHUT_RDWR)
	<-i.done
	i.file.Close()
	if e := i.s.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("close the control socket of process %d: %w", i.s.pid, err)
	}
	return nil
}

// ReportExits queues that the stub tells of the children that it reaps, from
// now on.
func (b *Batch) ReportExits() { b.Memcpy(quietAddr, uint64(b.PutWords(0)), 8) }
