package session

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Rebirth connects the session to the processes that were restored from a
// checkpoint. The log goes on behind a mark; a session that had ended since
// the checkpoint runs again. It remains to [Session.Save] it.
func (s *Session) Rebirth(state control.Session, checkpoint string, files []*os.File) error {
	defer closeAll(files)
	s.out.Stop()
	s.in.close()
	s.mu.Lock()
	stdout, stderr := s.out.Ends()
	s.rec.Marks = append(slices.Clone(s.rec.Marks), store.Mark{
		Generation: state.Generation, Checkpoint: checkpoint, Stdout: stdout, Stderr: stderr,
	})
	s.rec.Generation, s.rec.PID = state.Generation, state.PID
	s.rec.Ended, s.rec.EndedAt, s.rec.ExitCode, s.rec.Reason = false, time.Time{}, 0, ""
	s.timedOut, s.starting, s.asleep = false, false, false
	s.armTimer()
	s.broadcast()
	s.mu.Unlock()
	return s.connect(files)
}

// Save writes the record.
func (s *Session) Save(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.save(ctx)
}

// SaveWith has the records of sessions written, in one go, while nothing in them
// changes. They are sessions of one sandbox, each once, and one SaveWith of a
// sandbox runs at a time.
func SaveWith(sessions []*Session, write func([]store.Session) error) error {
	recs := make([]store.Session, len(sessions))
	for i, s := range sessions {
		s.mu.Lock()
		defer s.mu.Unlock()
		recs[i] = s.rec
	}
	return write(recs)
}

// Suspend lets go of the streams of a command that is about to stand still: what
// nobody has read yet stays where it is. [Session.Rebirth] or [Session.GoOn] gives the
// session streams again.
func (s *Session) Suspend() {
	s.mu.Lock()
	if s.rec.Ended {
		s.mu.Unlock()
		return
	}
	s.asleep = true
	s.mu.Unlock()
	s.out.Stop()
	s.in.close()
}

// GoOn gives the session the same streams again, after a pause that came to
// nothing. The files are closed.
func (s *Session) GoOn(state control.Session, files []*os.File) error {
	defer closeAll(files)
	s.mu.Lock()
	s.asleep = false
	s.mu.Unlock()
	if state.Ended && len(files) == 0 {
		return nil // its end is reported, too
	}
	return s.connect(files)
}
