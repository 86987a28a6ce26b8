package session

import (
	"context"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// wake makes the sandbox run on, if it stands still.
func (s *Session) wake(ctx context.Context) error {
	s.mu.Lock()
	asleep := s.asleep
	s.mu.Unlock()
	if !asleep || s.sup == nil {
		return nil
	}
	return s.sup.Wake(ctx)
}

// Signal sends a signal to the process group of a command that runs.
func (s *Session) Signal(ctx context.Context, signal int) error {
	if err := s.mustRun("signal"); err != nil {
		return err
	}
	return s.sup.Signal(ctx, control.SignalRequest{Sandbox: s.rec.Sandbox, Session: s.rec.Key, Signal: signal})
}

// Resize sets the size of the terminal of a command that runs. A session
// without a terminal ignores it.
func (s *Session) Resize(ctx context.Context, w control.Window) error {
	if !s.rec.TTY || w.Rows == 0 || w.Cols == 0 {
		return nil
	}
	if err := s.mustRun("resize"); err != nil {
		return err
	}
	return s.sup.Resize(ctx, control.ResizeRequest{Sandbox: s.rec.Sandbox, Session: s.rec.Key, Window: w})
}

func (s *Session) mustRun(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Ended || s.sup == nil {
		return fault.New(fault.Conflict, "%s session %s: it has ended", what, s.rec.ID)
	}
	return nil
}

// armTimer starts the timer of the deadline. s.mu is held.
func (s *Session) armTimer() {
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.rec.Deadline.IsZero() || s.rec.Ended || s.sup == nil {
		return
	}
	s.timer = time.AfterFunc(time.Until(s.rec.Deadline), func() {
		s.mu.Lock()
		if s.rec.Ended || s.closed {
			s.mu.Unlock()
			return
		}
		s.timedOut = true
		req := control.SignalRequest{Sandbox: s.rec.Sandbox, Session: s.rec.Key, Signal: sigkill}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.sup.Signal(ctx, req); err != nil {
			s.log.Error("a session whose time is over could not be killed", "error", err)
		}
	})
}
