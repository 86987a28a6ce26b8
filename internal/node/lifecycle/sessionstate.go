package lifecycle

import (
	"context"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
)

// Session finds a session by id. sandbox, an id or name, must be its own
// unless empty. The session is the caller's to release.
func (s *Sandboxes) Session(ctx context.Context, sid, sandbox string) (_ *session.Session, release func(), err error) {
	if sid == "" {
		return nil, nil, fault.New(fault.Invalid, "no session is named")
	}
	if err := s.wakeFor(ctx, sid); err != nil {
		return nil, nil, err
	}
	se, err := s.sessions.acquire(ctx, sid)
	if err != nil {
		return nil, nil, err
	}
	release = func() { s.sessions.release(se) }
	if sandbox != "" {
		b, err := s.find(ctx, sandbox)
		if err == nil && b.record().ID != se.Record().Sandbox {
			err = fault.New(fault.Invalid, "session %q is not of sandbox %q but of %q", sid, sandbox, se.Record().Sandbox)
		}
		if err != nil {
			release()
			return nil, nil, err
		}
	}
	return se, release, nil
}

// wakeFor wakes the sandbox of a session that has not ended.
func (s *Sandboxes) wakeFor(ctx context.Context, sid string) error {
	r, err := s.store.Session(ctx, sid)
	if err != nil || r.Ended {
		return nil //nolint:nilerr // who looks for it finds out
	}
	b, err := s.find(ctx, r.Sandbox)
	if err != nil {
		return nil //nolint:nilerr // just removed
	}
	return s.wake(ctx, b)
}

// SessionState is a session with the lengths of its log and the number of its
// followers.
type SessionState struct {
	store.Session
	Stdout, Stderr uint64
	Attached       int
}

// State describes a session.
func State(se *session.Session) SessionState {
	st := SessionState{Session: se.Record(), Attached: se.Attached()}
	st.Stdout, st.Stderr = se.Ends()
	return st
}

// Sessions lists a sandbox's sessions, oldest first.
func (s *Sandboxes) Sessions(ctx context.Context, ref string) ([]SessionState, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	recs, err := s.store.Sessions(ctx, b.record().ID)
	if err != nil {
		return nil, err
	}
	all := make([]SessionState, 0, len(recs))
	for _, r := range recs {
		se, err := s.sessions.acquire(ctx, r.ID)
		if err != nil {
			all = append(all, SessionState{Session: r})
			continue
		}
		all = append(all, State(se))
		s.sessions.release(se)
	}
	return all, nil
}

// Kill sends a signal to a session's process group.
func (s *Sandboxes) Kill(ctx context.Context, sid, sandbox string, signal int) error {
	if signal < 0 || signal > 64 {
		return fault.New(fault.Invalid, "signal %d: not 1 to 64", signal)
	}
	if signal == 0 {
		signal = 15
	}
	se, release, err := s.Session(ctx, sid, sandbox)
	if err != nil {
		return err
	}
	defer release()
	return se.Signal(ctx, signal)
}
