package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/node/output"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// keepEnded is how many ended sessions of a sandbox stay known, with their
// logs, and keepBytes how much room those may take; when pruneStep more, or
// pruneBytes more, have gathered, the oldest go.
const (
	keepEnded  = 1000
	pruneStep  = 100
	keepBytes  = 256 << 20
	pruneBytes = 32 << 20
)

// searchPath is the PATH of a command whose environment says nothing else.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ExecOptions say what to run.
type ExecOptions struct {
	Argv        []string
	Env         map[string]string
	Dir, User   string // empty: the template's
	TTY         bool
	Window      control.Window
	StdinClosed bool
	Timeout     time.Duration // 0: none
	// Follow, if set, is called with the new session before its command
	// runs, so that a follower misses nothing.
	Follow func(*session.Session)
}

func (o *ExecOptions) check() error {
	if len(o.Argv) == 0 || o.Argv[0] == "" {
		return fault.New(fault.Invalid, "no command is given")
	}
	if o.Timeout < 0 {
		return fault.New(fault.Invalid, "a timeout of %s: negative", o.Timeout)
	}
	return checkEnv(o.Env)
}

// Exec starts a command. The session is the caller's to release.
func (s *Sandboxes) Exec(ctx context.Context, ref string, o ExecOptions) (_ *session.Session, release func(), err error) {
	if err := o.check(); err != nil {
		return nil, nil, fmt.Errorf("exec: %w", err)
	}
	b, err := s.find(ctx, ref)
	if err != nil {
		return nil, nil, fmt.Errorf("exec: %w", err)
	}
	if err := s.awake(ctx, b, b.mu.RLocker()); err != nil {
		return nil, nil, fmt.Errorf("exec: %w", err)
	}
	defer b.mu.RUnlock()
	t, err := s.templateOf(ctx, b)
	if err != nil {
		return nil, nil, fmt.Errorf("exec: %w", err)
	}
	se, release, err := s.exec(ctx, b, t, o)
	if err != nil {
		return nil, nil, fmt.Errorf("exec in sandbox %q: %w", display(b.record()), err)
	}
	return se, release, nil
}

// templateOf returns a sandbox's template, which never changes and stays while
// the sandbox does.
func (s *Sandboxes) templateOf(ctx context.Context, b *sandbox) (store.Template, error) {
	b.recMu.Lock()
	id, t := b.rec.Template, b.template
	b.recMu.Unlock()
	if t != nil {
		return *t, nil
	}
	found, err := s.store.Template(ctx, id)
	if err != nil {
		return store.Template{}, err
	}
	b.recMu.Lock()
	defer b.recMu.Unlock()
	b.template = &found
	return found, nil
}

// exec starts a session. b.mu is held.
func (s *Sandboxes) exec(ctx context.Context, b *sandbox, t store.Template, o ExecOptions) (*session.Session, func(), error) {
	client, err := b.usable()
	if err != nil {
		return nil, nil, err
	}
	rec := b.record()
	now := time.Now().UTC()
	key := id.New(id.Session)
	sr := store.Session{ID: key, Sandbox: rec.ID, Key: key, Argv: o.Argv, TTY: o.TTY, Started: now, Generation: rec.Generation}
	if o.Timeout > 0 {
		sr.Deadline = now.Add(o.Timeout)
	}
	req := control.ExecRequest{
		Sandbox: rec.ID, Session: key, Argv: o.Argv, Env: environ(rec.Env, o), Dir: o.Dir, User: o.User,
		TTY: o.TTY, Window: o.Window, StdinClosed: o.StdinClosed && !o.TTY,
	}
	if req.Dir == "" {
		req.Dir = t.Dir
	}
	if req.User == "" {
		req.User = t.User
	}
	se, err := s.newSession(b, sr, client)
	if err != nil {
		return nil, nil, err
	}
	// The caller's reference: the sandbox's own may be gone before Exec returns.
	s.sessions.again(key)
	if o.Follow != nil {
		o.Follow(se)
	}
	// The record is written while the command starts. A node that dies between
	// the two leaves a session that the next one gives a new record.
	added := make(chan error, 1)
	go func() { added <- s.store.AddSession(context.WithoutCancel(ctx), sr) }()
	state, files, err := client.Exec(ctx, req)
	if aerr := <-added; aerr != nil && err == nil {
		closeAll(files)
		err = aerr
	}
	if err == nil {
		err = se.Start(state, files)
	}
	if err != nil {
		s.sessions.release(se)
		s.undoExec(context.WithoutCancel(ctx), b, se, client)
		return nil, nil, err
	}
	return se, func() { s.sessions.release(se) }, nil
}

// newSession opens a session that runs, or is about to, and notes it with its
// sandbox, to which the reference belongs until the end.
func (s *Sandboxes) newSession(b *sandbox, sr store.Session, client *control.Client) (*session.Session, error) {
	var se *session.Session
	se, err := s.sessions.make(session.Config{
		Record: sr, Supervisor: current{s, b},
		OnEnd:     func() { b.ping() },
		OnSettled: func() { s.settled(b, se) },
	})
	if err != nil {
		return nil, err
	}
	b.recMu.Lock()
	defer b.recMu.Unlock()
	b.running[sr.Key] = se
	b.broadcast()
	return se, nil
}

func (b *sandbox) ping() {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	b.broadcast()
}

// settled gives up the sandbox's reference of a session that has ended and
// whose output is all in the log.
func (s *Sandboxes) settled(b *sandbox, se *session.Session) {
	rec := se.Record()
	size := output.Size(logDir(s.sessions.dir, rec.Sandbox), rec.ID)
	b.recMu.Lock()
	mine := b.running[rec.Key] == se && se.Ended()
	if mine {
		delete(b.running, rec.Key)
		b.kept++
		b.keptBytes += size
	}
	prune := b.kept > keepEnded+pruneStep || b.keptBytes > keepBytes+pruneBytes
	if prune {
		b.kept, b.keptBytes = min(b.kept, keepEnded), min(b.keptBytes, keepBytes)
	}
	b.broadcast()
	b.recMu.Unlock()
	if mine {
		s.sessions.release(se)
	}
	if prune {
		s.prune(rec.Sandbox)
	}
}

// prune forgets the oldest ended sessions of a sandbox.
func (s *Sandboxes) prune(sandbox string) {
	ctx := context.Background()
	all, err := s.store.Sessions(ctx, sandbox)
	if err != nil {
		s.log.Error("forget old sessions", "sandbox", sandbox, "error", err)
		return
	}
	count, room := 0, int64(0)
	for _, r := range slices.Backward(all) { // the newest first
		if !r.Ended {
			continue
		}
		count++
		room += output.Size(logDir(s.sessions.dir, sandbox), r.ID)
		if count <= keepEnded && room <= keepBytes || count == 1 {
			continue
		}
		if err := s.sessions.drop(ctx, r); err != nil {
			s.log.Error("forget old session", "session", r.ID, "error", err)
		}
	}
}

// undoExec removes a session whose command did not start. Whether it did is
// unknown if the supervisor did not answer, so it is killed first.
func (s *Sandboxes) undoExec(ctx context.Context, b *sandbox, se *session.Session, client *control.Client) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := se.Record()
	_ = client.Signal(ctx, control.SignalRequest{Sandbox: r.Sandbox, Session: r.Key, Signal: 9})
	b.recMu.Lock()
	mine := b.running[r.Key] == se
	delete(b.running, r.Key)
	b.broadcast()
	b.recMu.Unlock()
	if mine {
		s.sessions.release(se)
	}
	if err := s.sessions.drop(ctx, r); err != nil && !fault.Is(err, fault.NotFound) {
		s.log.Error("a session that did not start is left behind", "session", r.ID, "error", err)
	}
}

// environ is the environment of a command: some defaults, what the template
// and the sandbox say, and what is asked for.
func environ(sandbox map[string]string, o ExecOptions) []string {
	base := map[string]string{"PATH": searchPath}
	if o.TTY {
		base["TERM"] = "xterm-256color"
	}
	all := merge(base, sandbox, o.Env)
	env := make([]string, 0, len(all))
	for k, v := range all {
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return env
}

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

func values[K comparable, V any](m map[K]V) []V {
	vs := make([]V, 0, len(m))
	for _, v := range m {
		vs = append(vs, v)
	}
	return vs
}
