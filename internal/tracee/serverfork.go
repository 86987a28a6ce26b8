package tracee

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Fork makes a copy of a stub, memory and all, that serves on a socket of its
// own. The copy is a child of the stub's parent (CLONE_PARENT), so that stubs
// which are copied from each other do not depend on each other's life.
func (s *Server) Fork() (*Server, error) {
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("copy stub %d: socketpair: %w", s.pid, err)
	}
	b := NewBatch()
	b.Call(unix.SYS_CLOSE_RANGE, 0, ControlFD-1, 0) // what a batch that failed has left
	b.ReceiveFDs(1)
	r, _ := b.Fork(CloneArgs{Flags: unix.CLONE_PARENT}, EndServe, func(c *Batch) {
		c.Call(unix.SYS_DUP3, 0, ControlFD, unix.O_CLOEXEC)
		c.Call(unix.SYS_CLOSE, 0)
	})
	b.Call(unix.SYS_CLOSE, 0)
	err = s.Do(b, sp[1])
	_ = unix.Close(sp[1])
	if err != nil {
		_ = unix.Close(sp[0])
		return nil, fmt.Errorf("copy stub %d: %w", s.pid, err)
	}
	c := NewServer(b.Value(r), sp[0])
	if err := c.Hello(); err != nil {
		c.Kill()
		return nil, fmt.Errorf("copy stub %d: %w", s.pid, err)
	}
	return c, nil
}
