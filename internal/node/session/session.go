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
