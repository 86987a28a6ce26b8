package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

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

// undo removes all of a sandbox that did not come to be: the supervisor may
// or may not have it. b.mu is held.
func (s *Sandboxes) undo(b *sandbox) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.remove(ctx, b); err != nil {
		s.log.Error("a sandbox that could not be made is left behind", "sandbox", b.rec.ID, "error", err)
	}
}
