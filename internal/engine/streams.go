package engine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// streams are the inner ends of a new session's standard streams.
type streams [3]int

func (s *streams) close() {
	for i, fd := range s {
		if fd >= 0 && (i == 0 || fd != s[0]) {
			_ = unix.Close(fd)
		}
	}
	*s = streams{-1, -1, -1}
}

// openPipes makes a session's pipes and gives it the outer ends.
func (s *session) openPipes() (inner streams, err error) {
	inner = streams{-1, -1, -1}
	s.outer = make([]*os.File, len(inner))
	for n := range inner {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			inner.close()
			s.close()
			return inner, fmt.Errorf("make the session's pipes: %w", err)
		}
		in, out := p[0], p[1]
		if n > 0 {
			in, out = out, in
		}
		inner[n] = in
		s.outer[n] = os.NewFile(uintptr(out), streamNames[n])
		var st unix.Stat_t
		if err := unix.Fstat(in, &st); err != nil {
			inner.close()
			s.close()
			return inner, fmt.Errorf("stat a session's pipe: %w", err)
		}
		s.inner[n] = inode{st.Dev, st.Ino}
	}
	return inner, nil
}

var streamNames = [3]string{"stdin", "stdout", "stderr"}

// openTerminal makes a session's terminal.
func (s *session) openTerminal(i *sandbox.Incarnation, w control.Window) (streams, error) {
	master, slave, err := i.OpenPTY(w)
	if err != nil {
		return streams{-1, -1, -1}, err
	}
	if err := s.takeMaster(master); err != nil {
		_ = unix.Close(slave)
		return streams{-1, -1, -1}, err
	}
	return streams{slave, slave, slave}, nil
}

// takeMaster gives a session the master of its terminal.
func (s *session) takeMaster(fd int) error {
	s.outer = []*os.File{os.NewFile(uintptr(fd), "terminal")}
	if err := s.guard.make(); err != nil {
		s.close()
		return err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		s.close()
		return fmt.Errorf("number of a session's terminal: %w", err)
	}
	s.pts = n
	return nil
}
