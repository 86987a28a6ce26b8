// Package rpc serves the API, proto/sandtree/v1, over what the node does.
//
// It translates and decides nothing: every check is made below. Errors get
// their code, kind and hint in one place, see toConnect.
package rpc

import (
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
	"github.com/sandtree/sandtree/api/sandtree/v1/sandtreev1connect"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// maxMessage bounds one message of a client, in bytes.
const maxMessage = 4 << 20

// Config is what is served.
type Config struct {
	Sandboxes *lifecycle.Sandboxes
	Images    Images
	Info      Info
}

// Handler returns the handler of the whole API.
func Handler(cfg Config) http.Handler {
	opts := []connect.HandlerOption{
		connect.WithInterceptors(faults{}),
		connect.WithReadMaxBytes(maxMessage),
		connect.WithCompression("gzip", nil, nil), // a unix socket is faster
	}
	mux := http.NewServeMux()
	mux.Handle(sandtreev1connect.NewDaemonHandler(&daemon{cfg.Sandboxes, cfg.Images, cfg.Info}, opts...))
	mux.Handle(sandtreev1connect.NewSandboxesHandler(&sandboxes{cfg.Sandboxes}, opts...))
	mux.Handle(sandtreev1connect.NewSessionsHandler(&sessions{cfg.Sandboxes}, opts...))
	mux.Handle(sandtreev1connect.NewCheckpointsHandler(&checkpoints{cfg.Sandboxes}, opts...))
	mux.Handle(sandtreev1connect.NewTemplatesHandler(&templates{cfg.Sandboxes, cfg.Images}, opts...))
	mux.Handle(sandtreev1connect.NewImagesHandler(&images{cfg.Sandboxes, cfg.Images}, opts...))
	mux.Handle(sandtreev1connect.NewFilesHandler(&files{cfg.Sandboxes}, opts...))
	return mux
}

func reply[T any](m *T) *connect.Response[T] { return connect.NewResponse(m) }

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func fromResources(m *sandtreev1.Resources) control.Resources {
	return control.Resources{MemoryBytes: m.GetMemoryBytes(), CPUs: m.GetCpus(), PIDs: m.GetPids(), DiskBytes: m.GetDiskBytes()}
}

func toResources(r control.Resources) *sandtreev1.Resources {
	return &sandtreev1.Resources{MemoryBytes: r.MemoryBytes, Cpus: r.CPUs, Pids: r.PIDs, DiskBytes: r.DiskBytes}
}

func errNoOpen(what string) error {
	return fault.New(fault.Invalid, "%s: the first message does not say what is wanted", what)
}
