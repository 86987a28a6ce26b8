package rpc

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/store"
)

type templates struct {
	s      *lifecycle.Sandboxes
	images Images
}

func (h *templates) toTemplate(t store.Template) *sandtreev1.Template {
	m := &sandtreev1.Template{
		Id: t.ID, Name: t.Name, Image: t.Image, ImageId: t.ImageID, Layers: t.Layers, Start: t.Start, Env: t.Env,
		User: t.User, Dir: t.Dir, Resources: toResources(t.Resources), Created: timestamp(t.Created), Setuid: t.Setuid, Reseed: t.Reseed,
		Ready: t.Ready,
	}
	if t.ReadyTimeout != 0 {
		m.ReadyTimeout = durationpb.New(t.ReadyTimeout)
	}
	if t.Start != "" {
		m.Golden = h.golden(t)
	}
	return m
}

var goldenStates = map[lifecycle.GoldenState]sandtreev1.Golden_State{
	lifecycle.GoldenMissing: sandtreev1.Golden_STATE_MISSING,
	lifecycle.GoldenMaking:  sandtreev1.Golden_STATE_MAKING,
	lifecycle.GoldenReady:   sandtreev1.Golden_STATE_READY,
}

func (h *templates) golden(t store.Template) *sandtreev1.Golden {
	state, c := h.s.Golden(t.ID)
	m := &sandtreev1.Golden{State: goldenStates[state]}
	if state == lifecycle.GoldenReady {
		m.Created, m.MemoryBytes, m.Processes = timestamp(c.Created), c.DirtyBytes, int64(c.Processes)
	}
	return m
}

func (h *templates) Create(ctx context.Context, req *connect.Request[sandtreev1.CreateTemplateRequest]) (*connect.Response[sandtreev1.CreateTemplateResponse], error) {
	m := req.Msg
	o := lifecycle.TemplateOptions{
		Name: m.GetName(), Start: m.GetStart(), Env: m.GetEnv(), User: m.GetUser(), Dir: m.GetDir(),
		Resources: fromResources(m.GetResources()), Setuid: m.GetSetuid(), Reseed: m.GetReseed(), Ready: m.GetReady(), ReadyTimeout: m.GetReadyTimeout().AsDuration(),
	}
	t, err := h.record(ctx, m.GetImage(), o)
	if err == nil {
		err = h.s.Prepare(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	return reply(&sandtreev1.CreateTemplateResponse{Template: h.toTemplate(t)}), nil
}

// record makes the record of a template.
func (h *templates) record(ctx context.Context, image string, o lifecycle.TemplateOptions) (store.Template, error) {
	// The image stays while the record is made.
	defer h.images.Hold()()
	i, err := h.images.Get(ctx, image)
	if err != nil {
		return store.Template{}, fmt.Errorf("create template: %w", err)
	}
	o.ImageID, o.Image, o.ImageEnv = i.ID, i.Name, i.Env
	o.Layers = i.Layers
	if o.User == "" {
		o.User = i.User
	}
	if o.Dir == "" {
		o.Dir = i.Dir
	}
	return h.s.CreateTemplate(ctx, o)
}

func (h *templates) List(ctx context.Context, _ *connect.Request[sandtreev1.ListTemplatesRequest]) (*connect.Response[sandtreev1.ListTemplatesResponse], error) {
	all, err := h.s.Templates(ctx)
	m := &sandtreev1.ListTemplatesResponse{}
	for _, t := range all {
		m.Templates = append(m.Templates, h.toTemplate(t))
	}
	return reply(m), err
}

func (h *templates) Get(ctx context.Context, req *connect.Request[sandtreev1.GetTemplateRequest]) (*connect.Response[sandtreev1.GetTemplateResponse], error) {
	t, err := h.s.Template(ctx, req.Msg.GetTemplate())
	return reply(&sandtreev1.GetTemplateResponse{Template: h.toTemplate(t)}), err
}

func (h *templates) Remove(ctx context.Context, req *connect.Request[sandtreev1.RemoveTemplateRequest]) (*connect.Response[sandtreev1.RemoveTemplateResponse], error) {
	id, err := h.s.RemoveTemplate(ctx, req.Msg.GetTemplate(), req.Msg.GetForce())
	return reply(&sandtreev1.RemoveTemplateResponse{Id: id}), err
}
