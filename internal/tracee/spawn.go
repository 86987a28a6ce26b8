package tracee

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Program is the stub's executable, sealed in memory. One serves any number of
// stubs.
type Program struct{ fd int }

// NewProgram makes the stub's executable. It needs memfd_create(2).
func NewProgram() (*Program, error) {
	fd, err := unix.MemfdCreate("stub", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make the stub's executable: memfd_create: %w", err)
	}
	if _, err := unix.Write(fd, stubELF()); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the stub's executable: write: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the stub's executable: seal: %w", err)
	}
	return &Program{fd}, nil
}

// Close drops the executable; stubs made from it live on.
func (p *Program) Close() error { return unix.Close(p.fd) }

// Spawn starts a stub as a child of this process. It holds no descriptor but
// its control socket and its signalfd, has all signals blocked and is not
// dumpable. It ends when the Server is closed, or this process ends.
func (p *Program) Spawn() (*Server, error) {
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start a stub: socketpair: %w", err)
	}
	defer unix.Close(sp[1])
	pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", p.fd), []string{"stub"},
		&syscall.ProcAttr{Files: []uintptr{uintptr(sp[1])}, Dir: "/"})
	if err != nil {
		unix.Close(sp[0])
		return nil, fmt.Errorf("start a stub: %w", err)
	}
	s := NewServer(pid, sp[0])
	if err := s.Hello(); err != nil {
		s.Close()
		reap(pid)
		return nil, fmt.Errorf("start a stub: %w", err)
	}
	return s, nil
}

// reap ends a child of this process and takes its status.
func reap(pid int) {
	_ = unix.Kill(pid, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != unix.EINTR {
			return
		}
	}
}
