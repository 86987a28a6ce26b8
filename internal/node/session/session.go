// Package session holds what a node does for a running command: it fills the
// command's log, writes its input, knows its end, and lets clients follow.
//
// A session survives its clients, the node, and a rollback of its sandbox to a
// checkpoint that holds it: see [Session.Rebirth]. What it printed is in its
// log, package output; what it is stands in the store.
//
// Locks: Session.mu guards the record and is held for no call that can block
// but the store's.
package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/output"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Reasons of an end that is not the command's own.
const (
	RolledBack   = "rolled back"
	SandboxEnded = "sandbox ended"
	Lost         = "lost"
	Timeout      = "timeout"
)

// sigkill ends what a timeout ends.
const sigkill = 9

// Supervisor is what a session asks of the supervisor that runs it.
type Supervisor interface {
	Signal(ctx context.Context, req control.SignalRequest) error
	Resize(ctx context.Context, req control.ResizeRequest) error
	CloseStdin(ctx context.Context, req control.SessionRequest) error
	Forget(ctx context.Context, req control.SessionRequest) error
	// Wake makes a sandbox that stands still run on.
	Wake(ctx context.Context) error
}

// Session is a running or ended command.
type Session struct {
	store store.Sessions
	sup   Supervisor // nil: it ended in an earlier life of the node
	out   *output.Log
	in    input
	log   *slog.Logger

	onEnd, onSettled func()

	mu       sync.Mutex
	rec      store.Session
	attached int
	starting bool          // its descriptors are still to come
	asleep   bool          // its sandbox stands still
	changed  chan struct{} // closed and replaced when anything here changes
	timer    *time.Timer   // of the deadline
	timedOut bool
	closed   bool
}

// Config is what a session is made of. The record is in the store already.
type Config struct {
	Record     store.Session
	Store      store.Sessions
	Supervisor Supervisor // nil for a session that ended before
	Dir        string     // of its log
	// OnEnd, if set, is called when the command has ended, OnSettled when
	// also all of its output is in the log and the supervisor has forgotten it.
	OnEnd, OnSettled func()
	Log              *slog.Logger
}

// New makes a session, without descriptors as yet.
func New(cfg Config) (*Session, error) {
	log := cfg.Log.With("session", cfg.Record.ID, "sandbox", cfg.Record.Sandbox)
	out, err := output.Open(cfg.Dir, cfg.Record.ID, cfg.Record.TTY, log)
	if err != nil {
		return nil, classify(err)
	}
	s := &Session{
		store: cfg.Store, sup: cfg.Supervisor, out: out, log: log,
		rec: cfg.Record, changed: make(chan struct{}), starting: !cfg.Record.Ended,
		onEnd: orNothing(cfg.OnEnd), onSettled: orNothing(cfg.OnSettled),
	}
	s.in.init()
	if len(s.rec.Marks) == 0 {
		s.rec.Marks = []store.Mark{{Generation: s.rec.Generation}}
	}
	return s, nil
}

// Start gives the session its descriptors, as control.ExecRequest states them,
// and closes them. State is what the supervisor said of it.
func (s *Session) Start(state control.Session, files []*os.File) error {
	defer closeAll(files)
	s.mu.Lock()
	s.rec.PID = state.PID
	s.rec.Generation = state.Generation
	if !state.Started.IsZero() {
		s.rec.Started = state.Started
	}
	s.armTimer()
	s.mu.Unlock()
	err := s.connect(files)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting = false
	if s.rec.Ended { // the news of its end was faster
		s.save(context.Background())
		s.in.close()
		s.out.Settle()
	}
	s.broadcast()
	return err
}

// Abandon records an end without descriptors: those of the session are lost.
func (s *Session) Abandon(ctx context.Context, generation uint64, code int, reason string) {
	s.mu.Lock()
	s.starting = false
	s.mu.Unlock()
	s.SetEnded(ctx, generation, code, reason)
}

// settled says that all that the command had printed is in the log.
func (s *Session) settled() bool {
	s.mu.Lock()
	starting := s.starting
	s.mu.Unlock()
	return !starting && s.out.Settled()
}

// connect makes the descriptors those of the log and the input.
func (s *Session) connect(files []*os.File) error {
	if want := (control.Session{TTY: s.rec.TTY}).Descriptors(); len(files) != want {
		return fault.New(fault.Internal, "session %s: the supervisor sent %d descriptors, not %d", s.rec.ID, len(files), want)
	}
	if err := s.in.set(files[0]); err != nil {
		return fmt.Errorf("session %s: %w", s.rec.ID, err)
	}
	var err error
	if s.rec.TTY {
		err = s.out.FillTerminal(files[0], files[1])
	} else {
		err = s.out.Fill(files[1:])
	}
	if err != nil {
		return fmt.Errorf("session %s: %w", s.rec.ID, err)
	}
	return nil
}

// Record returns what the store has of the session.
func (s *Session) Record() store.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rec
	r.Marks = slices.Clone(r.Marks)
	return r
}

// Ended reports whether the command has ended.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Ended
}

// Attached returns how many clients follow.
func (s *Session) Attached() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached
}

// Ends returns the lengths of the log's streams, in bytes.
func (s *Session) Ends() (stdout, stderr uint64) { return s.out.Ends() }

// Changed returns a channel that is closed at the session's next change of
// state. Take it before looking.
func (s *Session) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// broadcast wakes who waits for a change. s.mu is held.
func (s *Session) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
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

// Close lets go of the session: its log's files and its descriptors. What runs
// goes on. Followers see the end if the session has ended, or else an error of
// kind Unavailable.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	s.broadcast()
	s.mu.Unlock()
	s.in.close()
	return s.out.Close()
}

func (s *Session) streamChanges() []<-chan struct{} {
	cs := make([]<-chan struct{}, 0, 3)
	cs = append(cs, s.Changed())
	for _, st := range s.out.Streams {
		cs = append(cs, st.Changed())
	}
	return cs
}

// wait returns at the first change of up to three channels, or when ctx ends.
func wait(ctx context.Context, changes []<-chan struct{}) {
	var c [3]<-chan struct{}
	copy(c[:], changes)
	select {
	case <-ctx.Done():
	case <-c[0]:
	case <-c[1]:
	case <-c[2]:
	}
}

func orNothing(f func()) func() {
	if f == nil {
		return func() {}
	}
	return f
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// classify gives an error of the system a kind.
func classify(err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	if isNoSpace(err) {
		return fault.New(fault.Exhausted, "%w", err).WithHint("free space on the disk of the state directory")
	}
	return err
}
