package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// session are the pipes of a session: stdin, stdout and stderr of a command
// without a terminal. Their outer ends are this process's.
type session struct{ simple }

func (session) name() image.FileKind { return image.Session }

func (session) stream(c *Capturer, d *description) (Stream, bool) {
	if c.env.Session == nil {
		return Stream{}, false
	}
	return c.env.Session(d.stat.Dev, d.stat.Ino)
}

func (s session) claims(c *Capturer, d *description) bool {
	if !(pipe{}).claims(c, d) {
		return false
	}
	_, ok := s.stream(c, d)
	return ok
}

func (s session) examine(c *Capturer, d *description) error {
	st, _ := s.stream(c, d)
	d.file.Object, d.file.SessionID, d.file.Stream = c.object(d), st.SessionID, st.Number
	return c.examinePipe(d)
}

func (s session) read(c *Capturer, d *description) error {
	from := -1
	if st, _ := s.stream(c, d); st.Number != 0 {
		from = st.Outer
	}
	return c.readPipe(d, from)
}

func (session) open(o *Opened, f *image.File) (int, error) {
	p, ok := o.pipes[f.Object]
	if !ok {
		inner, found := -1, false
		if o.target.Session != nil {
			inner, found = o.target.Session(f.SessionID, f.Stream)
		}
		if !found {
			return -1, fault.New(fault.Internal, "session %s has no stream %d to restore", f.SessionID, f.Stream)
		}
		var err error
		if p, err = sessionEnds(inner, f); err != nil {
			return -1, err
		}
		o.pipes[f.Object] = p
	}
	return p.open(f)
}

// sessionEnds fills a new session's pipe and holds the end that goes inside.
func sessionEnds(inner int, f *image.File) (*pipeEnds, error) {
	fd, err := unix.FcntlInt(uintptr(inner), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate a session's pipe: %w", err)
	}
	p := &pipeEnds{fd: [2]int{fd, fd}}
	w := fd
	if f.Stream == 0 {
		p.given[1], p.fd[1] = true, fd
		// The write end may be closed on our side, which is an end of file
		// behind what is still unread.
		if len(f.Content) > 0 {
			if w, err = unix.Open(procFD(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
				return nil, fmt.Errorf("open the write end of a session's stdin: %w", err)
			}
			defer unix.Close(w)
		}
	} else {
		p.given[0] = true
	}
	return p, fillPipe(w, f)
}
