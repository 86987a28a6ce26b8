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
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/node/id"
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

// sandbox is one sandbox while this process lives.
type sandbox struct {
	// mu orders what replaces or ends the body against what uses it.
	mu sync.RWMutex

	// recMu guards what follows; it is held briefly.
	recMu   sync.Mutex
	rec     store.Sandbox
	fam     *family // nil: lost with its supervisor
	gone    bool    // removed
	rolling bool    // reports of sessions wait in ended
	ended   []control.Session
	running map[string]*session.Session // by key; each is one reference
	changed chan struct{}

	template  *store.Template // nil until somebody wants it
	kept      int             // ended sessions in the store, about
	keptBytes int64           // and the room that their logs take
}

func newSandbox(rec store.Sandbox, fam *family) *sandbox {
	return &sandbox{rec: rec, fam: fam, running: map[string]*session.Session{}, changed: make(chan struct{})}
}

func (b *sandbox) record() store.Sandbox {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	return b.rec
}

// broadcast wakes who waits for a change. recMu is held.
func (b *sandbox) broadcast() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// usable returns the supervisor of a sandbox that has a body.
func (b *sandbox) usable() (*control.Client, error) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	switch {
	case b.gone, b.rec.State == store.Removing:
		return nil, fault.New(fault.NotFound, "sandbox %q was removed", display(b.rec))
	case b.rec.State == store.Lost:
		return nil, lostError(b.rec, b.fam != nil)
	case asleep(b.rec.State): // paused just now
		return nil, fault.New(fault.Conflict, "sandbox %q stands still", display(b.rec)).
			WithHint("sandtree resume %s makes it run on", display(b.rec))
	case b.fam == nil:
		return nil, fault.New(fault.Unavailable, "sandbox %q has no supervisor", display(b.rec))
	}
	return b.fam.client, nil
}

func lostError(rec store.Sandbox, canRollBack bool) error {
	e := fault.New(fault.Lost, "sandbox %q is lost: %s", display(rec), rec.LostReason)
	if canRollBack {
		return e.WithHint("roll it back to a checkpoint, or remove it with: sandtree rm %s", display(rec))
	}
	return e.WithHint("remove it with: sandtree rm %s", display(rec))
}

// display is how messages call a sandbox.
func display(rec store.Sandbox) string {
	if rec.Name != "" {
		return rec.Name
	}
	return rec.ID
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

// CreateOptions say what a new sandbox is to be.
type CreateOptions struct {
	Template  string // id or name; empty: DefaultTemplate
	Name      string
	Hostname  string
	Env       map[string]string
	Resources control.Resources
}

// Create boots a sandbox, or, where its template has a start command, forks it
// from the golden checkpoint.
func (s *Sandboxes) Create(ctx context.Context, o CreateOptions) (store.Sandbox, error) {
	t, err := s.template(ctx, o.Template)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("create sandbox: %w", err)
	}
	if err := o.check(); err != nil {
		return store.Sandbox{}, fmt.Errorf("create sandbox: %w", err)
	}
	rec := store.Sandbox{
		ID: id.NewSandbox(s.tag), Name: o.Name, Template: t.ID, Hostname: o.Hostname, Env: merge(t.Env, o.Env),
		Resources: override(t.Resources, o.Resources), State: store.Creating, Created: time.Now().UTC(),
	}
	if rec.Hostname == "" {
		rec.Hostname = hostname(rec)
	}
	b := newSandbox(rec, nil)
	b.mu.Lock() // nobody uses it before it is there
	defer b.mu.Unlock()
	if err := s.add(ctx, b); err != nil {
		return store.Sandbox{}, fmt.Errorf("create sandbox: %w", err)
	}
	fam, err := s.families.ensure(ctx, t)
	if err == nil {
		err = s.populate(ctx, b, t, fam)
	}
	if err != nil {
		s.undo(b)
		return store.Sandbox{}, fmt.Errorf("create sandbox of template %q: %w", t.Name, err)
	}
	rec, err = s.update(ctx, b, func(r *store.Sandbox) { r.State = store.Running })
	if err == nil && t.Reseed {
		err = s.reseedNew(ctx, b, t)
	}
	if err != nil {
		s.undo(b)
		return store.Sandbox{}, fmt.Errorf("create sandbox of template %q: %w", t.Name, err)
	}
	return rec, nil
}

// populate makes the body of a sandbox whose record is there. b.mu is held.
func (s *Sandboxes) populate(ctx context.Context, b *sandbox, t store.Template, fam *family) error {
	if t.Start != "" {
		g, err := s.golden(ctx, t, fam)
		if err != nil {
			return err
		}
		b.setFamily(fam)
		return s.fromGolden(ctx, b, g)
	}
	b.setFamily(fam)
	rec := b.record()
	_, err := fam.client.Create(ctx, control.CreateRequest{
		Sandbox: rec.ID, Hostname: rec.Hostname, Resources: rec.Resources, Setuid: t.Setuid,
	})
	return err
}

// add makes a new sandbox known, by its record first.
func (s *Sandboxes) add(ctx context.Context, all ...*sandbox) error {
	recs := make([]store.Sandbox, len(all))
	for i, b := range all {
		recs[i] = b.rec
	}
	if err := s.store.AddSandboxes(ctx, recs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range all {
		s.live[b.rec.ID] = b
	}
	return nil
}

func (b *sandbox) setFamily(f *family) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	b.fam = f
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

// change changes a record here; it remains to save it.
func (b *sandbox) change(change func(*store.Sandbox)) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	change(&b.rec)
	b.broadcast()
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

// undo removes all of a sandbox that did not come to be: the supervisor may
// or may not have it. b.mu is held.
func (s *Sandboxes) undo(b *sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.remove(ctx, b); err != nil {
		s.log.Error("a sandbox that could not be made is left behind", "sandbox", b.rec.ID, "error", err)
	}
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

// Remove ends a sandbox and deletes all of it. Without force it refuses, with
// Conflict, while sessions run. It waits for a checkpoint or rollback that is
// under way.
func (s *Sandboxes) Remove(ctx context.Context, ref string, force bool) (string, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("remove: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.recMu.Lock()
	n, gone, rec := len(b.running), b.gone, b.rec
	b.recMu.Unlock()
	if gone {
		return "", fault.New(fault.NotFound, "remove: sandbox %q was removed", ref)
	}
	if n > 0 && !force && (rec.State == store.Running || asleep(rec.State)) {
		return "", fault.New(fault.Conflict, "remove: %d sessions run in sandbox %q", n, display(rec)).
			WithHint("sandtree rm -f %s ends them", display(rec))
	}
	if rec.State == store.Hibernated {
		// What it has on disk is deleted by its supervisor. If none can be had now,
		// the next one does it.
		if _, err := s.reach(ctx, b); err != nil {
			s.log.Warn("what a removed sandbox has on disk is left to the next supervisor", "sandbox", rec.ID, "error", err)
		}
	}
	// What was begun is finished: half a sandbox is of no use to anybody.
	if err := s.remove(context.WithoutCancel(ctx), b); err != nil {
		return "", fmt.Errorf("remove sandbox %q: %w", display(rec), err)
	}
	return rec.ID, nil
}

// remove ends a sandbox, whatever there is of it. b.mu is held.
func (s *Sandboxes) remove(ctx context.Context, b *sandbox) error {
	b.recMu.Lock()
	fam, rec := b.fam, b.rec
	b.recMu.Unlock()
	if rec.State != store.Removing {
		if _, err := s.update(ctx, b, func(r *store.Sandbox) { r.State = store.Removing }); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
	}
	if fam != nil {
		err := fam.client.Remove(ctx, rec.ID)
		if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable) {
			return err
		}
	}
	b.recMu.Lock()
	running := b.running
	b.running = map[string]*session.Session{}
	b.recMu.Unlock()
	for _, se := range running {
		se.Abandon(ctx, se.Record().Generation, 128+9, session.SandboxEnded)
		s.sessions.release(se)
	}
	if err := s.store.RemoveSandbox(ctx, rec.ID); err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	s.mu.Lock()
	delete(s.live, rec.ID)
	s.mu.Unlock()
	b.recMu.Lock()
	b.gone = true
	b.broadcast()
	b.recMu.Unlock()
	if err := s.sessions.forget(rec.ID); err != nil {
		s.log.Error("logs of a removed sandbox are left behind", "sandbox", rec.ID, "error", err)
	}
	return nil
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
