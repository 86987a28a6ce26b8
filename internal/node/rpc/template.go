package rpc

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/store"
)

type templates struct {
	s      *lifecycle.Sandboxes
	images Images
}

func toTemplate(t store.Template) *sandtreev1.Template {
	return &sandtreev1.Template{
		Id: t.ID, Name: t.Name, Image: t.Image, ImageId: t.ImageID, Layers: t.Layers, Start: t.Start, Env: t.Env,
		User: t.User, Dir: t.Dir, Resources: toResources(t.Resources), Created: timestamp(t.Created), Setuid: t.Setuid,
	}
}

func (h *templates) Create(ctx context.Context, req *connect.Request[sandtreev1.CreateTemplateRequest]) (*connect.Response[sandtreev1.CreateTemplateResponse], error) {
	m := req.Msg
	o := lifecycle.TemplateOptions{
		Name: m.GetName(), Start: m.GetStart(), Env: m.GetEnv(), User: m.GetUser(), Dir: m.GetDir(),
		Resources: fromResources(m.GetResources()), Setuid: m.GetSetuid(),
	}
	// The image stays while the record is made.
	defer h.images.Hold()()
	i, err := h.images.Get(ctx, m.GetImage())
	if err != nil {
		return nil, fmt.Errorf("create template: %w", err)
	}
	o.ImageID, o.Image, o.ImageEnv = i.ID, i.Name, i.Env
	o.Layers = i.Layers
	if o.User == "" {
		o.User = i.User
	}
	if o.Dir == "" {
		o.Dir = i.Dir
	}
	t, err := h.s.CreateTemplate(ctx, o)
	return reply(&sandtreev1.CreateTemplateResponse{Template: toTemplate(t)}), err
}

func (h *templates) List(ctx context.Context, _ *connect.Request[sandtreev1.ListTemplatesRequest]) (*connect.Response[sandtreev1.ListTemplatesResponse], error) {
	all, err := h.s.Templates(ctx)
	m := &sandtreev1.ListTemplatesResponse{}
	for _, t := range all {
		m.Templates = append(m.Templates, toTemplate(t))
	}
	return reply(m), err
}

func (h *templates) Get(ctx context.Context, req *connect.Request[sandtreev1.GetTemplateRequest]) (*connect.Response[sandtreev1.GetTemplateResponse], error) {
	t, err := h.s.Template(ctx, req.Msg.GetTemplate())
	return reply(&sandtreev1.GetTemplateResponse{Template: toTemplate(t)}), err
}

func (h *templates) Remove(ctx context.Context, req *connect.Request[sandtreev1.RemoveTemplateRequest]) (*connect.Response[sandtreev1.RemoveTemplateResponse], error) {
	id, err := h.s.RemoveTemplate(ctx, req.Msg.GetTemplate(), req.Msg.GetForce())
	return reply(&sandtreev1.RemoveTemplateResponse{Id: id}), err
}
