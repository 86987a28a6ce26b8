package lifecycle

import (
	"context"
	"slices"

	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
)

// Waited is why a wait ended.
type Waited struct {
	Sandbox store.Sandbox
	Removed bool
	Session *SessionState // that was waited for, or ended last
}

// Wait returns when a session has ended, or, without one, when none of the
// sandbox's runs any more, or the sandbox is removed or lost.
func (s *Sandboxes) Wait(ctx context.Context, ref, sid string) (Waited, error) {
	if sid != "" {
		return s.waitSession(ctx, ref, sid)
	}
	b, err := s.find(ctx, ref)
	if err != nil {
		return Waited{}, err
	}
	for {
		b.recMu.Lock()
		rec, gone, changed := b.rec, b.gone, b.changed
		runs := slices.ContainsFunc(values(b.running), func(se *session.Session) bool { return !se.Ended() })
		b.recMu.Unlock()
		if gone {
			return Waited{Sandbox: rec, Removed: true}, nil
		}
		if !runs || rec.State == store.Lost {
			w := Waited{Sandbox: rec}
			w.Session, err = s.lastEnded(ctx, rec.ID)
			return w, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Waited{}, context.Cause(ctx)
		}
	}
}

func (s *Sandboxes) waitSession(ctx context.Context, ref, sid string) (Waited, error) {
	se, release, err := s.Session(ctx, sid, ref)
	if err != nil {
		return Waited{}, err
	}
	defer release()
	for {
		changed := se.Changed()
		if se.Ended() {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Waited{}, context.Cause(ctx)
		}
	}
	st := State(se)
	b, err := s.find(ctx, st.Sandbox)
	if err != nil {
		return Waited{Sandbox: store.Sandbox{ID: st.Sandbox}, Removed: true, Session: &st}, nil //nolint:nilerr // it was removed
	}
	return Waited{Sandbox: b.record(), Session: &st}, nil
}

// lastEnded returns the session of a sandbox that ended last, or nil.
func (s *Sandboxes) lastEnded(ctx context.Context, sandbox string) (*SessionState, error) {
	recs, err := s.store.Sessions(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	var last *SessionState
	for _, r := range recs {
		if r.Ended && (last == nil || r.EndedAt.After(last.EndedAt)) {
			last = &SessionState{Session: r}
		}
	}
	return last, nil
}
