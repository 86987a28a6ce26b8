package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

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
	if err := c.ownerOfPipe(d); err != nil {
		return err
	}
	return c.examinePipe(d)
}

func (s session) read(c *Capturer, d *description) error {
	from := -1
	if st, _ := s.stream(c, d); st.Number != 0 {
		from = st.Outer
	}
	return c.readPipe(d, from)
}

// readLeft captures what is unread in sessions' pipes that every process has
// closed.
func (c *Capturer) readLeft() error {
	for _, s := range c.env.Streams {
		if s.Number == 0 || s.Outer < 0 || c.hasStream(s) {
			continue
		}
		n, err := unix.IoctlGetInt(s.Outer, unix.TIOCINQ)
		if err != nil {
			return fmt.Errorf("unread bytes of a session's pipe: %w", err)
		}
		if n == 0 {
			continue
		}
		f := &image.File{
			Kind: image.Session, Flags: unix.O_WRONLY, Mode: unix.S_IFIFO, SessionID: s.SessionID, Stream: s.Number,
			Object: len(c.objects) + 1 + len(c.left),
		}
		if f.PipeSize, err = unix.FcntlInt(uintptr(s.Outer), unix.F_GETPIPE_SZ, 0); err != nil {
			return fmt.Errorf("size of a session's pipe: %w", err)
		}
		if err := readContent(f, s.Outer, n); err != nil {
			return err
		}
		c.left = append(c.left, f)
	}
	return nil
}

// hasStream reports whether a process has a session's pipe.
func (c *Capturer) hasStream(s Stream) bool {
	for i := range c.descriptions {
		f := c.descriptions[i].file
		if f.Kind == image.Session && f.SessionID == s.SessionID && f.Stream == s.Number {
			return true
		}
	}
	return false
}

func (session) open(o *Opened, f *image.File) (int, error) {
	p, ok := o.pipes[f.Object]
	if !ok {
		inner, found := -1, false
		if o.target.Session != nil {
			inner, found = o.target.Session(f.SessionID, f.Stream)
		}
		if !found {
			// It had ended, and what it left behind has this pipe still: nobody
			// is at the other end.
			return pipe{}.open(o, f)
		}
		fd, err := unix.FcntlInt(uintptr(inner), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("duplicate a session's pipe: %w", err)
		}
		// The other end is never given away: it is outside.
		p = &pipeEnds{fd: [2]int{fd, fd}, given: [2]bool{f.Stream != 0, f.Stream == 0}}
		o.pipes[f.Object] = p
		if err := fillSession(fd, f); err != nil {
			return -1, err
		}
	}
	return p.open(f)
}

// fillSession puts what was unread into a new session's pipe, whose inner end
// is fd.
func fillSession(fd int, f *image.File) error {
	if f.Stream != 0 || len(f.Content) == 0 {
		return fillPipe(fd, f)
	}
	// Our own write end may be closed, which is an end of file behind what is
	// still unread.
	w, err := unix.Open(procFD(fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the write end of a session's stdin: %w", err)
	}
	defer unix.Close(w)
	return fillPipe(w, f)
}
