package engine

import (
	"cmp"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// session is a running or ended command with the outer ends of its streams,
// which this process keeps so that a node can come and go.
type session struct {
	control.Session
	// outer are the write end of stdin and the read ends of stdout and stderr,
	// or the master of the terminal. A closed one is nil.
	outer []*os.File
	inner [3]inode // of the pipes, which tell them apart in a capture
	pts   int      // N of /dev/pts/N
	guard guard    // of reading from the terminal
	// stdinClosed is set in the records of a checkpoint.
	stdinClosed bool
	suspended   bool // its process has ended with a body that comes back
}

type inode struct{ dev, ino uint64 }

func (s *session) close() {
	for _, f := range s.outer {
		if f != nil {
			_ = f.Close()
		}
	}
	s.outer = nil
	s.guard.close()
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// sessions are a box's, by id.
type sessions struct {
	mu  sync.Mutex
	all map[string]*session
}

func (s *sessions) list() []control.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]control.Session, 0, len(s.all))
	for _, x := range s.all {
		out = append(out, x.Session)
	}
	slices.SortFunc(out, inOrder)
	return out
}

// find returns a session by id.
func (s *sessions) find(id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.all[id]
	if x == nil {
		return nil, fault.New(fault.NotFound, "no session %q", id)
	}
	return x, nil
}

// enter adds a session whose id must be free.
func (s *sessions) enter(x *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[string]*session{}
	}
	if s.all[x.ID] != nil {
		return fault.New(fault.Exists, "session %s exists already", x.ID)
	}
	s.all[x.ID] = x
	return nil
}

// duplicates are descriptors of a session's streams for the node, with one of
// the guard behind those of a terminal.
func (s *sessions) duplicates(x *session) ([]*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*os.File
	fail := func(err error) ([]*os.File, error) {
		for _, o := range out {
			_ = o.Close()
		}
		return nil, fault.New(fault.Internal, "duplicate a stream of session %s: %w", x.ID, err)
	}
	for _, f := range x.outer {
		if f == nil { // a closed stdin: an end that goes nowhere stands for it
			f = devNull
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fail(err)
		}
		out = append(out, os.NewFile(uintptr(fd), f.Name()))
	}
	if x.TTY && len(out) > 0 {
		g, err := x.guard.open()
		if err != nil {
			return fail(err)
		}
		out = append(out, g)
	}
	return out, nil
}

// devNull takes writes to a stdin that was closed.
var devNull, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)

// closeStdin closes this process's end.
func (s *sessions) closeStdin(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.all[id]
	switch {
	case x == nil:
		return fault.New(fault.NotFound, "no session %q", id)
	case x.TTY:
		return fault.New(fault.Invalid, "session %s has a terminal, whose input has no end", id).
			WithHint("send ctrl-d instead")
	case len(x.outer) > 0 && x.outer[0] != nil:
		_ = x.outer[0].Close()
		x.outer[0] = nil
	}
	return nil
}

// forget drops an ended session.
func (s *sessions) forget(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.all[id]
	switch {
	case x == nil:
		return nil
	case !x.Ended:
		return fault.New(fault.Conflict, "session %s has not ended", id)
	}
	delete(s.all, id)
	x.close()
	return nil
}

// env tells a capture which pipes and terminals are sessions'.
func (s *sessions) env(root int) descriptor.Env {
	s.mu.Lock()
	defer s.mu.Unlock()
	pipes := map[inode]descriptor.Stream{}
	type terminal struct {
		id     string
		master int
	}
	terminals := map[int]terminal{}
	env := descriptor.Env{Root: root}
	for _, x := range s.all {
		if len(x.outer) == 0 {
			continue
		}
		if x.TTY {
			terminals[x.pts] = terminal{x.ID, int(x.outer[0].Fd())}
			if !x.Ended {
				env.Terminals = append(env.Terminals, x.pts)
			}
			continue
		}
		for n, i := range x.inner {
			outer := -1
			if x.outer[n] != nil {
				outer = int(x.outer[n].Fd())
			}
			pipes[i] = descriptor.Stream{SessionID: x.ID, Number: n, Outer: outer}
			if n > 0 && !x.Ended {
				env.Streams = append(env.Streams, pipes[i])
			}
		}
	}
	env.Session = func(dev, ino uint64) (descriptor.Stream, bool) { p, ok := pipes[inode{dev, ino}]; return p, ok }
	env.SessionPTY = func(n int) (string, int, bool) {
		t, ok := terminals[n]
		return t.id, t.master, ok
	}
	return env
}

// running are copies of the records of those whose command is in a tree that
// was captured, in the order of [sessions.list].
func (s *sessions) running(t *image.Tree) []*session {
	alive := map[int]bool{}
	for _, p := range t.Processes {
		alive[p.PID] = p.State != image.Zombie
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*session
	for _, x := range s.all {
		if !x.Ended && alive[x.PID] {
			c := *x
			c.outer, c.guard = nil, guard{}
			if len(x.outer) > 0 {
				c.stdinClosed = !x.TTY && x.outer[0] == nil
			}
			out = append(out, &c)
		}
	}
	slices.SortFunc(out, func(a, b *session) int { return inOrder(a.Session, b.Session) })
	return out
}

// inOrder orders sessions by their beginning.
func inOrder(a, b control.Session) int {
	return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
}

// suspend closes all streams. Those sessions that are in a checkpoint come back with the
// next body; the others have just ended, as is still to be reported.
func (s *sessions) suspend(captured []*session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range captured {
		if x := s.all[c.ID]; x != nil && !x.Ended {
			x.suspended = true
		}
	}
	for _, x := range s.all {
		x.close()
	}
}

// closeAll closes every session's streams.
func (s *sessions) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.all {
		x.close()
	}
	s.all = nil
}

// started notes when a session began.
func started(r control.ExecRequest, generation uint64) control.Session {
	return control.Session{
		ID: r.Session, Sandbox: r.Sandbox, Argv: r.Argv, TTY: r.TTY, Started: time.Now(), Generation: generation,
	}
}
