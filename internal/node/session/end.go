package session

import (
	"context"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Abandon records an end without descriptors: those of the session are lost.
func (s *Session) Abandon(ctx context.Context, generation uint64, code int, reason string) {
	s.mu.Lock()
	s.starting = false
	s.mu.Unlock()
	s.SetEnded(ctx, generation, code, reason)
}

// SetEnded records that the command has ended. Reports of an earlier
// generation than the session's are stale and dropped. What the command left
// in its pipes is still logged before followers see the end.
func (s *Session) SetEnded(ctx context.Context, generation uint64, code int, reason string) {
	s.mu.Lock()
	if s.rec.Ended || s.closed || generation < s.rec.Generation {
		s.mu.Unlock()
		return
	}
	if s.timedOut && reason == "" {
		reason = Timeout
	}
	s.rec.Ended, s.rec.EndedAt, s.rec.ExitCode, s.rec.Reason = true, time.Now(), code, reason
	if s.timer != nil {
		s.timer.Stop()
	}
	s.save(ctx)
	s.out.Settle()
	s.broadcast()
	s.mu.Unlock()
	s.in.close()
	s.onEnd()
	if s.sup != nil {
		go s.forget()
	}
}

// forget tells the supervisor that it need not keep the ended session, once
// all that it printed is in the log.
func (s *Session) forget() {
	defer s.onSettled()
	for {
		changes := s.streamChanges()
		settled := s.settled()
		s.mu.Lock()
		over := s.closed || !s.rec.Ended
		req := control.SessionRequest{Sandbox: s.rec.Sandbox, Session: s.rec.Key}
		s.mu.Unlock()
		if over {
			return
		}
		if settled {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.sup.Forget(ctx, req); err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable) {
				s.log.Warn("the supervisor keeps an ended session", "error", err)
			}
			return
		}
		wait(context.Background(), changes)
	}
}

// save writes the record. s.mu is held. A store that fails must not end the
// session: what is lost is what a restarted node knows of it.
func (s *Session) save(ctx context.Context) {
	if err := s.store.UpdateSession(context.WithoutCancel(ctx), s.rec); err != nil && !fault.Is(err, fault.NotFound) {
		s.log.Error("a session's state could not be stored", "error", err)
	}
}
