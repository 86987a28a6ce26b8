// Package lifecycle is what a node knows and does about sandboxes: it creates,
// finds and removes them, starts sessions in them, and moves them along their
// checkpoint trees.
//
// Three parties know a sandbox. Its supervisor owns its body and its tree; the
// store has its record, its sessions' and its checkpoints' names; and here is
// what joins them while this process lives. A record is written before the
// supervisor is asked to make the thing and deleted after it has removed it,
// so a node that starts after a kill finds a record for everything that is
// there, and recover makes the two agree.
//
// Locks, in order: sandbox.mu (held exclusively by what replaces or ends the
// body: checkpoint, rollback, remove; shared by what uses it), then those of
// registries. No lock is held while a follower waits.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// DefaultTemplate is the template of a sandbox for which none is named.
const DefaultTemplate = "debian"

// MaxFork bounds the copies of one fork.
const MaxFork = 1024

// Host is what is asked of the root part of the daemon.
type Host interface {
	EnsureFamily(ctx context.Context, req hostcontrol.EnsureFamilyRequest) (hostcontrol.Family, *os.File, error)
	Families(ctx context.Context) ([]hostcontrol.Family, []*os.File, error)
	EndFamily(ctx context.Context, family string) error
}

// Config is what sandboxes are run with.
type Config struct {
	Store    store.Store
	Host     Host
	Tag      string // of the sandboxes' ids
	Sessions string // directory of the sessions' logs
	Log      *slog.Logger
}

// Sandboxes are the node's sandboxes.
type Sandboxes struct {
	store    store.Store
	tag      string
	log      *slog.Logger
	families *families
	sessions *sessions
	goldens  *goldens
	noting   sync.Mutex     // of what checkpoints are, held over a read and a write
	writing  sync.WaitGroup // records of what clients were told already

	mu     sync.Mutex
	live   map[string]*sandbox // by id, the lost ones too
	ready  bool                // all that was found is taken up
	early  []func()            // reports that came before
	closed bool                // nothing is put off any more
}

// New takes up the sandboxes that the store and the host's supervisors know.
func New(ctx context.Context, cfg Config) (*Sandboxes, error) {
	s := &Sandboxes{
		store: cfg.Store, tag: cfg.Tag, log: cfg.Log, live: map[string]*sandbox{}, goldens: newGoldens(),
		sessions: &sessions{store: cfg.Store, dir: cfg.Sessions, log: cfg.Log, byID: map[string]*session.Session{}, refs: map[*session.Session]int{}},
	}
	s.families = newFamilies(cfg.Host, control.Events{
		SessionEnded: s.sessionEnded, SandboxEnded: s.sandboxEnded, CheckpointFailed: s.checkpointFailed, CheckpointKept: s.checkpointKept,
	}, s.familyStarted, cfg.Log)
	if err := s.recover(ctx); err != nil {
		return nil, fmt.Errorf("take up sandboxes: %w", err)
	}
	s.listen()
	return s, nil
}

// Close lets go of all sandboxes and sessions; they go on.
func (s *Sandboxes) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.writing.Wait()
	s.goldens.close()
	s.families.close()
	s.sessions.close()
}

// find finds a sandbox by id or name.
func (s *Sandboxes) find(ctx context.Context, ref string) (*sandbox, error) {
	if ref == "" {
		return nil, fault.New(fault.Invalid, "no sandbox is named")
	}
	s.mu.Lock()
	b := s.live[ref]
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	rec, err := s.store.Sandbox(ctx, ref)
	if err != nil {
		return nil, hint(err, "sandtree ls shows the sandboxes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.live[rec.ID]; b != nil {
		return b, nil
	}
	return nil, fault.New(fault.NotFound, "sandbox %q was removed", ref)
}

// hint adds what to do to an error of kind NotFound.
func hint(err error, text string) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Kind == fault.NotFound && f.Hint == "" {
		return f.WithHint("%s", text)
	}
	return err
}

// update changes a record here and in the store.
func (s *Sandboxes) update(ctx context.Context, b *sandbox, change func(*store.Sandbox)) (store.Sandbox, error) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	change(&b.rec)
	b.broadcast()
	return b.rec, s.store.UpdateSandbox(context.WithoutCancel(ctx), b.rec)
}

// afterwards calls f on a goroutine of its own, which Close waits for; or at once
// while the node ends.
func (s *Sandboxes) afterwards(f func()) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.writing.Add(1)
	}
	s.mu.Unlock()
	if closed {
		f()
		return
	}
	go func() {
		defer s.writing.Done()
		f()
	}()
}

// save writes the records of a sandbox and of sessions of it to the store, as they
// are here.
func (s *Sandboxes) save(ctx context.Context, b *sandbox, sessions []*session.Session) error {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	return session.SaveWith(sessions, func(recs []store.Session) error {
		return s.store.UpdateBody(context.WithoutCancel(ctx), b.rec, recs)
	})
}

// Get finds a sandbox.
func (s *Sandboxes) Get(ctx context.Context, ref string) (store.Sandbox, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return store.Sandbox{}, err
	}
	return b.record(), nil
}

// List lists the sandboxes, oldest first. Golden ones are nobody's and not in it.
func (s *Sandboxes) List(ctx context.Context) ([]store.Sandbox, error) {
	all, err := s.store.Sandboxes(ctx)
	return slices.DeleteFunc(all, func(r store.Sandbox) bool { return r.Golden }), err
}

// File does one file operation in a sandbox; req.Sandbox is filled in.
func (s *Sandboxes) File(ctx context.Context, ref string, req control.FileRequest) (control.FileReply, *os.File, error) {
	var file *os.File
	reply, err := with(ctx, s, ref, "", func(c *control.Client, rec store.Sandbox) (r control.FileReply, err error) {
		req.Sandbox = rec.ID
		r, file, err = c.File(ctx, req)
		return r, err
	})
	return reply, file, err
}

// with calls f for a sandbox that has a body, and keeps the body meanwhile. what
// begins the text of its errors; it may be empty.
func with[T any](ctx context.Context, s *Sandboxes, ref, what string, f func(*control.Client, store.Sandbox) (T, error)) (T, error) {
	var none T
	b, err := s.find(ctx, ref)
	if err != nil {
		return none, during(what, err)
	}
	if err := s.awake(ctx, b, b.mu.RLocker()); err != nil {
		return none, during(what, err)
	}
	defer b.mu.RUnlock()
	c, err := b.usable()
	if err != nil {
		return none, during(what, err)
	}
	v, err := f(c, b.record())
	if err != nil {
		return none, during(what, err)
	}
	return v, nil
}

// during says what failed, if the error itself does not.
func during(what string, err error) error {
	if what == "" {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// logDir is the directory of a sandbox's session logs.
func logDir(dir, sandbox string) string { return filepath.Join(dir, sandbox) }
