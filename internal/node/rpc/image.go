package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/fault"
	nodeimages "github.com/sandtree/sandtree/internal/node/images"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
)

// reportEvery is how often a client hears of progress.
const reportEvery = 100 * time.Millisecond

// Images are the node's images; package images has the only implementation.
type Images = *nodeimages.Images

type images struct {
	s      *lifecycle.Sandboxes
	images Images
}

func toImage(i nodeimages.Image) *sandtreev1.Image {
	return &sandtreev1.Image{
		Id: i.ID, Name: i.Name, Layers: i.Layers, SizeBytes: i.Size, Created: timestamp(i.Created), Env: i.Env,
		User: i.User, Dir: i.Dir, Entrypoint: i.Entrypoint, Cmd: i.Cmd,
	}
}

// sometimes passes progress on, but not more often than a client can read.
func sometimes(send func(*sandtreev1.Progress) error) func(nodeimages.Progress) {
	var last time.Time
	return func(p nodeimages.Progress) {
		if now := time.Now(); now.Sub(last) >= reportEvery {
			last = now
			// A client that is gone ends the work by its context.
			_ = send(&sandtreev1.Progress{Stage: p.Stage, DoneBytes: p.Done, TotalBytes: p.Total})
		}
	}
}

func (h *images) Import(ctx context.Context, stream *connect.BidiStream[sandtreev1.ImportImageRequest, sandtreev1.ImportImageResponse]) error {
	m, err := stream.Receive()
	if err != nil {
		return err
	}
	open := m.GetOpen()
	if open == nil {
		return errNoOpen("import image")
	}
	src := &messages{next: func() ([]byte, error) {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		if err != nil {
			return nil, fault.New(fault.Canceled, "the client went away: %w", err)
		}
		return m.GetData(), nil
	}}
	i, err := h.images.Import(ctx, open.GetName(), src, open.GetTotalBytes(), sometimes(func(p *sandtreev1.Progress) error {
		return stream.Send(&sandtreev1.ImportImageResponse{Message: &sandtreev1.ImportImageResponse_Progress{Progress: p}})
	}))
	if err != nil {
		return err
	}
	return stream.Send(&sandtreev1.ImportImageResponse{Message: &sandtreev1.ImportImageResponse_Image{Image: toImage(i)}})
}

func (h *images) Pull(ctx context.Context, req *connect.Request[sandtreev1.PullImageRequest], stream *connect.ServerStream[sandtreev1.PullImageResponse]) error {
	i, err := h.images.Pull(ctx, req.Msg.GetName(), req.Msg.GetReference(), req.Msg.GetInsecure(), sometimes(func(p *sandtreev1.Progress) error {
		return stream.Send(&sandtreev1.PullImageResponse{Message: &sandtreev1.PullImageResponse_Progress{Progress: p}})
	}))
	if err != nil {
		return err
	}
	return stream.Send(&sandtreev1.PullImageResponse{Message: &sandtreev1.PullImageResponse_Image{Image: toImage(i)}})
}

func (h *images) List(ctx context.Context, _ *connect.Request[sandtreev1.ListImagesRequest]) (*connect.Response[sandtreev1.ListImagesResponse], error) {
	all, err := h.images.List(ctx)
	m := &sandtreev1.ListImagesResponse{}
	for _, i := range all {
		m.Images = append(m.Images, toImage(i))
	}
	return reply(m), err
}

func (h *images) Remove(ctx context.Context, req *connect.Request[sandtreev1.RemoveImageRequest]) (*connect.Response[sandtreev1.RemoveImageResponse], error) {
	id, err := h.images.Remove(ctx, req.Msg.GetImage())
	return reply(&sandtreev1.RemoveImageResponse{Id: id}), err
}
