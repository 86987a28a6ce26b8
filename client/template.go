package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// Template is what sandboxes are created from.
type Template struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	ImageID   string            `json:"image_id"`
	Layers    []string          `json:"layers"` // digests, lowest first
	Start     string            `json:"start,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`
	Dir       string            `json:"dir,omitempty"`
	Resources Resources         `json:"resources"`
	Setuid    bool              `json:"setuid,omitempty"`
	Created   time.Time         `json:"created"`
}

// TemplateConfig says what a new template is to be.
type TemplateConfig struct {
	Name  string
	Image string // a name or id
	Start string // a shell command that runs as a session of each new sandbox
	Env   map[string]string
	User  string // default: the image's
	Dir   string // default: the image's
	// Resources of each sandbox, where it does not say otherwise.
	Resources Resources
	// Setuid lets setuid programs, such as sudo, gain privilege inside.
	Setuid bool
}

// CreateTemplate makes a template.
func (c *Client) CreateTemplate(ctx context.Context, t TemplateConfig) (Template, error) {
	r, err := c.templates.Create(ctx, connect.NewRequest(&sandtreev1.CreateTemplateRequest{
		Name: t.Name, Image: t.Image, Start: t.Start, Env: t.Env, User: t.User, Dir: t.Dir,
		Resources: toResources(t.Resources), Setuid: t.Setuid,
	}))
	if err != nil {
		return Template{}, wrap(err)
	}
	return fromTemplate(r.Msg.GetTemplate()), nil
}

// Templates lists all templates by name.
func (c *Client) Templates(ctx context.Context) ([]Template, error) {
	r, err := c.templates.List(ctx, connect.NewRequest(&sandtreev1.ListTemplatesRequest{}))
	if err != nil {
		return nil, wrap(err)
	}
	all := make([]Template, 0, len(r.Msg.GetTemplates()))
	for _, m := range r.Msg.GetTemplates() {
		all = append(all, fromTemplate(m))
	}
	return all, nil
}

// Template finds a template by id or name.
func (c *Client) Template(ctx context.Context, ref string) (Template, error) {
	r, err := c.templates.Get(ctx, connect.NewRequest(&sandtreev1.GetTemplateRequest{Template: ref}))
	if err != nil {
		return Template{}, wrap(err)
	}
	return fromTemplate(r.Msg.GetTemplate()), nil
}

// RemoveTemplate deletes a template, by id or name. It refuses, with
// [Conflict], while sandboxes use it, unless force removes them too.
func (c *Client) RemoveTemplate(ctx context.Context, ref string, force bool) error {
	_, err := c.templates.Remove(ctx, connect.NewRequest(&sandtreev1.RemoveTemplateRequest{Template: ref, Force: force}))
	return wrap(err)
}

func fromTemplate(m *sandtreev1.Template) Template {
	return Template{
		ID: m.GetId(), Name: m.GetName(), Image: m.GetImage(), ImageID: m.GetImageId(), Layers: m.GetLayers(),
		Start: m.GetStart(), Env: m.GetEnv(), User: m.GetUser(), Dir: m.GetDir(),
		Resources: fromResources(m.GetResources()), Setuid: m.GetSetuid(), Created: m.GetCreated().AsTime(),
	}
}
