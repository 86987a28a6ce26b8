package engine

import (
	"context"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Exec starts a command as a session.
func (e *Engine) Exec(_ context.Context, r control.ExecRequest) (control.Session, []*os.File, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Session{}, nil, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	o, err := b.live()
	if err != nil {
		return control.Session{}, nil, err
	}
	if r.Session == "" {
		return control.Session{}, nil, fault.New(fault.Invalid, "a session without an id")
	}
	user, err := o.inc.LookupUser(r.User)
	if err != nil {
		return control.Session{}, nil, err
	}
	s := &session{Session: started(r, b.generation)}
	var inner streams
	if r.TTY {
		inner, err = s.openTerminal(o.inc, r.Window)
	} else {
		inner, err = s.openPipes()
	}
	if err != nil {
		return control.Session{}, nil, err
	}
	defer inner.close()
	p, err := o.inc.Exec(sandbox.Command{Argv: r.Argv, Env: withHome(r.Env, user.Home), Dir: r.Dir, User: user, TTY: r.TTY}, inner)
	if err != nil {
		s.close()
		return control.Session{}, nil, err
	}
	s.PID = p.PID()
	if r.StdinClosed && !r.TTY {
		_ = s.outer[0].Close()
		s.outer[0] = nil
	}
	if err := b.sessions.enter(s); err != nil {
		_ = o.inc.Signal(s.PID, unix.SIGKILL)
		s.close()
		return control.Session{}, nil, err
	}
	files, err := b.sessions.duplicates(s)
	if err != nil {
		return control.Session{}, nil, err
	}
	begun := b.sessions.record(s) // it may end at once
	e.await(b, o, s, p)
	return begun, files, nil
}

// await notes the end of a session's command.
func (e *Engine) await(b *box, o *body, s *session, p *sandbox.Process) {
	oom, _ := o.inc.Cgroup().OOMKills()
	generation := s.Generation
	go func() {
		<-p.Done()
		status, lost := p.Status()
		b.sessions.mu.Lock()
		if s.Ended || s.suspended || s.Generation != generation {
			b.sessions.mu.Unlock()
			return // it goes on in another incarnation, or was ended with its own
		}
		s.Ended, s.ExitCode = true, p.ExitCode()
		switch {
		case lost:
			s.ExitCode, s.Reason = 128+int(unix.SIGKILL), "sandbox ended"
		case status.Signaled() && status.Signal() == unix.SIGKILL:
			if n, err := o.inc.Cgroup().OOMKills(); err == nil && n > oom {
				s.Reason = "oom"
			}
		}
		report := s.Session
		b.sessions.mu.Unlock()
		e.events.SessionEnded(report)
	}()
}

// endSessions ends the records of a body's sessions that still run.
func (e *Engine) endSessions(b *box, o *body, reason string) {
	b.sessions.mu.Lock()
	var ended []control.Session
	for _, s := range b.sessions.all {
		if !s.Ended {
			s.Ended, s.ExitCode, s.Reason = true, 128+int(unix.SIGKILL), reason
			ended = append(ended, s.Session)
		}
	}
	b.sessions.mu.Unlock()
	for _, s := range ended {
		e.events.SessionEnded(s)
	}
}

// Adopt returns a session with descriptors of its streams.
func (e *Engine) Adopt(_ context.Context, r control.SessionRequest) (control.Session, []*os.File, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Session{}, nil, err
	}
	s, err := b.sessions.find(r.Session)
	if err != nil {
		return control.Session{}, nil, err
	}
	files, err := b.sessions.duplicates(s)
	if err != nil {
		return control.Session{}, nil, err
	}
	return b.sessions.record(s), files, nil
}

// Forget drops an ended session.
func (e *Engine) Forget(_ context.Context, r control.SessionRequest) error {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return err
	}
	b.mu.RLock() // a capture looks at its pipes
	defer b.mu.RUnlock()
	return b.sessions.forget(r.Session)
}

// CloseStdin closes this process's end of a session's standard input.
func (e *Engine) CloseStdin(_ context.Context, r control.SessionRequest) error {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return err
	}
	return b.sessions.closeStdin(r.Session)
}

// Signal signals a session's process group.
func (e *Engine) Signal(_ context.Context, r control.SignalRequest) error {
	return e.session(r.Sandbox, r.Session, func(o *body, s control.Session, _ *session) error {
		if r.Signal < 1 || r.Signal > 64 {
			return fault.New(fault.Invalid, "no signal has the number %d", r.Signal)
		}
		return o.inc.SignalGroup(s.PID, unix.Signal(r.Signal))
	})
}

// Resize sets the size of a session's terminal.
func (e *Engine) Resize(_ context.Context, r control.ResizeRequest) error {
	return e.session(r.Sandbox, r.Session, func(_ *body, s control.Session, x *session) error {
		if !s.TTY {
			return fault.New(fault.Invalid, "session %s has no terminal", s.ID)
		}
		return sandbox.Resize(int(x.outer[0].Fd()), r.Window)
	})
}

// session calls f for a session that runs.
func (e *Engine) session(sandboxID, id string, f func(*body, control.Session, *session) error) error {
	b, err := e.box(sandboxID)
	if err != nil {
		return err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	o, err := b.live()
	if err != nil {
		return err
	}
	x, err := b.sessions.find(id)
	if err != nil {
		return err
	}
	s := b.sessions.record(x)
	if s.Ended {
		return fault.New(fault.Conflict, "session %s has ended", id)
	}
	return f(o, s, x)
}

// record is a copy of a session's record.
func (s *sessions) record(x *session) control.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return x.Session
}

// withHome adds HOME, the user's home inside, to an environment without one:
// programs look for their settings there, and some do not start without it.
func withHome(env []string, home string) []string {
	if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "HOME=") }) {
		return env
	}
	return append(slices.Clip(env), "HOME="+home)
}
