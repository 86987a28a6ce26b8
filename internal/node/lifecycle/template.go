package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// template finds a sandbox's template; an empty ref means the default one.
func (s *Sandboxes) template(ctx context.Context, ref string) (store.Template, error) {
	if ref == "" {
		ref = DefaultTemplate
	}
	t, err := s.store.Template(ctx, ref)
	if ref == DefaultTemplate {
		return t, hint(err, "make template builds it; or name another with --template")
	}
	return t, hint(err, "sandtree template ls shows the templates")
}

// TemplateOptions say what a new template is to be. The image's part comes
// from the image.
type TemplateOptions struct {
	Name           string
	ImageID, Image string
	Layers         []string // digests, lowest first
	ImageEnv       map[string]string
	Start, Ready   string
	ReadyTimeout   time.Duration // 0: DefaultReadyTimeout
	Env            map[string]string
	User, Dir      string
	Resources      control.Resources
	Setuid, Reseed bool
}

func (o *TemplateOptions) checkStart() error {
	switch {
	case o.Ready != "" && o.Start == "":
		return fault.New(fault.Invalid, "a ready command without a start command")
	case o.ReadyTimeout != 0 && o.Ready == "":
		return fault.New(fault.Invalid, "a time limit for being ready without a ready command")
	case o.ReadyTimeout < 0:
		return fault.New(fault.Invalid, "a time limit of %s: negative", o.ReadyTimeout)
	}
	return nil
}

// CreateTemplate makes a template. One with a start command is still to be
// prepared; see [Sandboxes.Prepare].
func (s *Sandboxes) CreateTemplate(ctx context.Context, o TemplateOptions) (store.Template, error) {
	err := checkName("template", o.Name)
	if err == nil {
		err = checkEnv(o.Env)
	}
	if err == nil {
		err = checkResources(o.Resources)
	}
	if err == nil {
		err = o.checkStart()
	}
	if err != nil {
		return store.Template{}, fmt.Errorf("create template: %w", err)
	}
	t := store.Template{
		ID: id.New(id.Template), Name: o.Name, ImageID: o.ImageID, Image: o.Image, Layers: o.Layers, Start: o.Start,
		Env: merge(o.ImageEnv, o.Env), User: o.User, Dir: o.Dir, Resources: o.Resources, Setuid: o.Setuid, Reseed: o.Reseed, Created: time.Now().UTC(),
		Ready: o.Ready, ReadyTimeout: o.ReadyTimeout,
	}
	if err := s.store.AddTemplate(ctx, t); err != nil {
		return store.Template{}, fmt.Errorf("create template: %w", err)
	}
	return t, nil
}

// Template finds a template by id or name.
func (s *Sandboxes) Template(ctx context.Context, ref string) (store.Template, error) {
	t, err := s.store.Template(ctx, ref)
	return t, hint(err, "sandtree template ls shows the templates")
}

// Templates lists the templates by name.
func (s *Sandboxes) Templates(ctx context.Context) ([]store.Template, error) {
	return s.store.Templates(ctx)
}

// RemoveTemplate deletes a template and ends its supervisor. It refuses, with
// Conflict, while sandboxes use it, unless force removes them.
func (s *Sandboxes) RemoveTemplate(ctx context.Context, ref string, force bool) (string, error) {
	t, err := s.Template(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("remove: %w", err)
	}
	if force { // at once: sandboxes that are being created wait for it
		s.removeGolden(t.ID)
	}
	recs, err := s.store.Sandboxes(ctx)
	if err != nil {
		return "", err
	}
	users := 0
	for _, r := range recs {
		if r.Template != t.ID || r.Golden {
			continue
		}
		if !force {
			users++
			continue
		}
		if _, err := s.Remove(ctx, r.ID, true); err != nil && !fault.Is(err, fault.NotFound) {
			return "", fmt.Errorf("remove template %q: %w", t.Name, err)
		}
	}
	if users > 0 {
		return "", fault.New(fault.Conflict, "remove: template %q is used by %d sandboxes", t.Name, users).
			WithHint("sandtree template rm -f %s removes them too", t.Name)
	}
	s.removeGolden(t.ID)
	if err := s.removeLeftGolden(ctx, t.ID); err != nil {
		return "", fmt.Errorf("remove template %q: %w", t.Name, err)
	}
	// The record goes first: from now on nobody starts the family again.
	if err := s.store.RemoveTemplate(ctx, t.ID); err != nil {
		return "", fmt.Errorf("remove template %q: %w", t.Name, err)
	}
	if err := s.families.end(context.WithoutCancel(ctx), t.ID); err != nil {
		s.log.Error("a removed template's supervisor may be left", "template", t.ID, "error", err)
	}
	return t.ID, nil
}

// removeLeftGolden removes what an earlier node has left of a golden checkpoint that
// it was making: recovery may not have come to it yet.
func (s *Sandboxes) removeLeftGolden(ctx context.Context, template string) error {
	recs, err := s.store.Sandboxes(ctx)
	for _, r := range recs {
		if r.Template != template || !r.Golden {
			continue
		}
		if _, e := s.Remove(ctx, r.ID, true); e != nil && !fault.Is(e, fault.NotFound) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// FamilyState is a family that runs.
type FamilyState struct {
	ID, Template string
	Sandboxes    int
}

// Counts are how many of everything there are.
type Counts struct {
	Running, Lost, Sessions, Templates int
	Families                           []FamilyState
}

// Counts counts.
func (s *Sandboxes) Counts(ctx context.Context) (c Counts, err error) {
	recs, err := s.List(ctx)
	if err != nil {
		return c, err
	}
	in := map[string]int{}
	for _, r := range recs {
		switch r.State {
		case store.Running:
			c.Running++
			in[r.Template]++
		case store.Lost:
			c.Lost++
		}
	}
	templates, err := s.store.Templates(ctx)
	if err != nil {
		return c, err
	}
	c.Templates = len(templates)
	names := map[string]string{}
	for _, t := range templates {
		names[t.ID] = t.Name
	}
	for _, f := range s.families.ids() {
		c.Families = append(c.Families, FamilyState{ID: f, Template: names[f], Sandboxes: in[f]})
	}
	s.mu.Lock()
	live := values(s.live)
	s.mu.Unlock()
	for _, b := range live {
		b.recMu.Lock()
		if b.rec.Golden {
			b.recMu.Unlock()
			continue
		}
		for _, se := range b.running {
			if !se.Ended() {
				c.Sessions++
			}
		}
		b.recMu.Unlock()
	}
	return c, nil
}
