package client

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

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
	Reseed    bool              `json:"reseed,omitempty"`
	Created   time.Time         `json:"created"`
	// Ready is the command that says when Start is ready, ReadyTimeout how long
	// it is waited for; 0: a minute.
	Ready        string        `json:"ready,omitempty"`
	ReadyTimeout time.Duration `json:"ready_timeout_ns,omitempty"`
	// Golden is there if Start is.
	Golden *Golden `json:"golden,omitempty"`
}

// Golden is the checkpoint of a template that its sandboxes are forked from.
type Golden struct {
	State GoldenState `json:"state"`
	// The rest is of one that is ready.
	Created     time.Time `json:"created,omitzero"`
	MemoryBytes int64     `json:"memory_bytes,omitempty"`
	Processes   int       `json:"processes,omitempty"`
}

// GoldenState says whether a golden checkpoint is there.
type GoldenState string

// The states of a golden checkpoint.
const (
	GoldenMissing GoldenState = "missing" // it is made for the next sandbox
	GoldenMaking  GoldenState = "making"
	GoldenReady   GoldenState = "ready"
)

// TemplateConfig says what a new template is to be.
type TemplateConfig struct {
	Name  string
	Image string // a name or id
	// Start is a shell command that runs once, when the template is made; each
	// new sandbox is a fork of the sandbox in which it ran, when it was ready.
	Start string
	// Ready is a shell command that succeeds when Start is ready. Without one
	// it is ready when it has ended with status 0 or has run for two seconds.
	Ready        string
	ReadyTimeout time.Duration // default: a minute
	Env          map[string]string
	User         string // default: the image's
	Dir          string // default: the image's
	// Resources of each sandbox, where it does not say otherwise.
	Resources Resources
	// Setuid lets setuid programs, such as sudo, gain privilege inside.
	Setuid bool
	// Reseed gives each sandbox an identity of its own when it is created or forked;
	// see [ForkOptions].
	Reseed bool
}

// CreateTemplate makes a template. With a start command it returns when that is
// ready; if it fails, there is no template.
func (c *Client) CreateTemplate(ctx context.Context, t TemplateConfig) (Template, error) {
	req := &sandtreev1.CreateTemplateRequest{
		Name: t.Name, Image: t.Image, Start: t.Start, Env: t.Env, User: t.User, Dir: t.Dir,
		Resources: toResources(t.Resources), Setuid: t.Setuid, Reseed: t.Reseed, Ready: t.Ready,
	}
	if t.ReadyTimeout != 0 {
		req.ReadyTimeout = durationpb.New(t.ReadyTimeout)
	}
	r, err := c.templates.Create(ctx, connect.NewRequest(req))
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
	t := Template{
		ID: m.GetId(), Name: m.GetName(), Image: m.GetImage(), ImageID: m.GetImageId(), Layers: m.GetLayers(),
		Start: m.GetStart(), Env: m.GetEnv(), User: m.GetUser(), Dir: m.GetDir(),
		Resources: fromResources(m.GetResources()), Setuid: m.GetSetuid(), Reseed: m.GetReseed(), Created: m.GetCreated().AsTime(),
		Ready: m.GetReady(), ReadyTimeout: m.GetReadyTimeout().AsDuration(),
	}
	if g := m.GetGolden(); g != nil {
		t.Golden = &Golden{State: goldenStates[g.GetState()], MemoryBytes: g.GetMemoryBytes(), Processes: int(g.GetProcesses())}
		if g.GetCreated() != nil {
			t.Golden.Created = g.GetCreated().AsTime()
		}
	}
	return t
}

var goldenStates = map[sandtreev1.Golden_State]GoldenState{
	sandtreev1.Golden_STATE_MISSING: GoldenMissing,
	sandtreev1.Golden_STATE_MAKING:  GoldenMaking,
	sandtreev1.Golden_STATE_READY:   GoldenReady,
}
