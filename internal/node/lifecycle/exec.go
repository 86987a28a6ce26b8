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

func values[K comparable, V any](m map[K]V) []V {
	vs := make([]V, 0, len(m))
	for _, v := range m {
		vs = append(vs, v)
	}
	return vs
}
