package client

import (
	"context"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// Image is a set of read-only layers with a configuration.
type Image struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Layers     []string          `json:"layers"` // digests, lowest first
	SizeBytes  int64             `json:"size_bytes"`
	Created    time.Time         `json:"created"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`
	Dir        string            `json:"dir,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
}

// ImageKind says what a tar holds.
type ImageKind int32

// The kinds of image tars.
const (
	AnyImage    ImageKind = 0 // the daemon looks at the entries
	OCIImage    ImageKind = 1 // an OCI layout
	DockerImage ImageKind = 2 // what docker save wrote
	RootImage   ImageKind = 3 // the root file system itself
)

// Progress of long work. Total is 0 if it isn't known.
type Progress struct {
	Stage       string `json:"stage"` // a word or two
	Done, Total int64  // bytes
}

// ImportConfig says what is imported.
type ImportConfig struct {
	Name string
	Kind ImageKind
	// TotalBytes of the tar if known, for the progress reports.
	TotalBytes int64
	// OnProgress, if set, is called by one goroutine at a time.
	OnProgress func(Progress)
}

// ImportImage uploads a tar and makes an image of it.
func (c *Client) ImportImage(ctx context.Context, cfg ImportConfig, tar io.Reader) (Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := c.images.Import(ctx)
	err := s.Send(&sandtreev1.ImportImageRequest{Message: &sandtreev1.ImportImageRequest_Open{Open: &sandtreev1.ImportImageOpen{
		Name: cfg.Name, Kind: sandtreev1.ImageKind(cfg.Kind), TotalBytes: cfg.TotalBytes,
	}}})
	if err != nil && !errors.Is(err, io.EOF) {
		return Image{}, wrap(err)
	}
	sent := make(chan error, 1)
	go func() {
		err := sendChunks(ctx, tar, func(p []byte) error {
			return s.Send(&sandtreev1.ImportImageRequest{Message: &sandtreev1.ImportImageRequest_Data{Data: p}})
		})
		if err == nil {
			err = s.CloseRequest()
		}
		sent <- err
		if err != nil && !errors.Is(err, io.EOF) {
			cancel() // the source failed: the daemon must not take what it got for the whole
		}
	}()
	for {
		m, err := s.Receive()
		if err != nil {
			select {
			case serr := <-sent:
				if serr != nil && !errors.Is(serr, io.EOF) {
					return Image{}, serr
				}
			default:
			}
			if errors.Is(err, io.EOF) {
				return Image{}, &Error{Kind: Internal, Message: "import: the daemon sent no image"}
			}
			return Image{}, wrap(err)
		}
		switch m := m.GetMessage().(type) {
		case *sandtreev1.ImportImageResponse_Progress:
			report(cfg.OnProgress, m.Progress)
		case *sandtreev1.ImportImageResponse_Image:
			return fromImage(m.Image), nil
		}
	}
}

// PullConfig says what is pulled.
type PullConfig struct {
	Reference  string // as registries know it, "debian:12"
	Name       string // here; default: the reference
	Insecure   bool   // allow a registry without TLS
	OnProgress func(Progress)
}

// PullImage fetches an image from a registry.
func (c *Client) PullImage(ctx context.Context, cfg PullConfig) (Image, error) {
	s, err := c.images.Pull(ctx, connect.NewRequest(&sandtreev1.PullImageRequest{
		Reference: cfg.Reference, Name: cfg.Name, Insecure: cfg.Insecure,
	}))
	if err != nil {
		return Image{}, wrap(err)
	}
	defer func() { _ = s.Close() }()
	for s.Receive() {
		switch m := s.Msg().GetMessage().(type) {
		case *sandtreev1.PullImageResponse_Progress:
			report(cfg.OnProgress, m.Progress)
		case *sandtreev1.PullImageResponse_Image:
			return fromImage(m.Image), nil
		}
	}
	if err := s.Err(); err != nil {
		return Image{}, wrap(err)
	}
	return Image{}, &Error{Kind: Internal, Message: "pull: the daemon sent no image"}
}

// Images lists all images by name.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	r, err := c.images.List(ctx, connect.NewRequest(&sandtreev1.ListImagesRequest{}))
	if err != nil {
		return nil, wrap(err)
	}
	all := make([]Image, 0, len(r.Msg.GetImages()))
	for _, m := range r.Msg.GetImages() {
		all = append(all, fromImage(m))
	}
	return all, nil
}

// RemoveImage deletes an image, by id or name, that no template uses.
func (c *Client) RemoveImage(ctx context.Context, ref string) error {
	_, err := c.images.Remove(ctx, connect.NewRequest(&sandtreev1.RemoveImageRequest{Image: ref}))
	return wrap(err)
}

func report(f func(Progress), m *sandtreev1.Progress) {
	if f != nil {
		f(Progress{Stage: m.GetStage(), Done: m.GetDoneBytes(), Total: m.GetTotalBytes()})
	}
}

func fromImage(m *sandtreev1.Image) Image {
	return Image{
		ID: m.GetId(), Name: m.GetName(), Layers: m.GetLayers(), SizeBytes: m.GetSizeBytes(), Created: m.GetCreated().AsTime(),
		Env: m.GetEnv(), User: m.GetUser(), Dir: m.GetDir(), Entrypoint: m.GetEntrypoint(), Cmd: m.GetCmd(),
	}
}
