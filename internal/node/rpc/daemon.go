package rpc

import (
	"context"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
)

// Info is what does not change while the node runs.
type Info struct {
	Version, State, Socket, Tag, Kernel string
	PID                                 int
	Started                             time.Time
}

type daemon struct {
	s      *lifecycle.Sandboxes
	images Images
	info   Info
}

func (d *daemon) Info(ctx context.Context, _ *connect.Request[sandtreev1.InfoRequest]) (*connect.Response[sandtreev1.InfoResponse], error) {
	c, err := d.s.Counts(ctx)
	if err != nil {
		return nil, err
	}
	all, err := d.images.List(ctx)
	if err != nil {
		return nil, err
	}
	m := &sandtreev1.InfoResponse{
		Version: d.info.Version, StateDirectory: d.info.State, Socket: d.info.Socket, Tag: d.info.Tag, Pid: int64(d.info.PID),
		Started: timestamp(d.info.Started), Kernel: d.info.Kernel,
		SandboxesRunning: int64(c.Running), SandboxesLost: int64(c.Lost), SessionsRunning: int64(c.Sessions),
		Templates: int64(c.Templates), Images: int64(len(all)),
	}
	for _, f := range c.Families {
		m.Families = append(m.Families, &sandtreev1.Family{Id: f.ID, Template: f.Template, Sandboxes: int64(f.Sandboxes)})
	}
	return reply(m), nil
}
