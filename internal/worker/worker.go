// Package worker is the process that does the long work on a family's
// checkpoints: it writes them to the family's repository, reads, verifies,
// exports and removes them. It runs at the lowest priority unless somebody waits for
// it, and stands still while a checkpoint does, so that nobody feels it.
//
// The host starts it with a connection ([control.FDControl]) and a configuration
// ([control.FDConfig]), hands in the sockets of its clients, the supervisor's,
// and starts another when it dies. It holds nothing that matters: what it had
// written is durable, what it was writing is tried again by the supervisor.
//
// It needs root for the files of sandboxes: any owner, trusted attributes,
// device nodes. It reads nothing that a client or a sandbox wrote but through package
// durable, which takes everything for hostile.
package worker

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
	"github.com/sandtree/sandtree/internal/worker/control"
)

const (
	// heapLimit is the soft limit of the heap.
	heapLimit = 256 << 20
	lowest    = 19 // nice value
)

// Main runs a worker with the descriptors it was started with, until the host's
// connection ends or ctx does. It is the whole process.
func Main(ctx context.Context, log *slog.Logger) error {
	for _, fd := range []int{control.FDControl, control.FDConfig} {
		unix.CloseOnExec(fd)
	}
	sock, err := wire.Open(os.NewFile(control.FDControl, "control socket"))
	if err != nil {
		return fault.New(fault.Invalid, "worker: %w", err).WithHint("this command is started by sandtree serve")
	}
	cfg, err := readConfig(os.NewFile(control.FDConfig, "configuration"))
	if err != nil {
		sock.Close()
		return err
	}
	debug.SetMemoryLimit(heapLimit)
	runtime.GOMAXPROCS(max(1, runtime.NumCPU()-1)) // one stays free for those who are waited for
	w, err := Open(cfg, log)
	if err != nil {
		sock.Close()
		return err
	}
	if err := w.awaiting.background(); err != nil {
		log.Warn("the worker runs with the priority of others", "error", err)
	}
	defer w.Close()
	host := wire.NewPeer(sock, w.hostVerbs(), w.log)
	err = host.Serve(ctx)
	if ctx.Err() != nil {
		err = nil // an orderly end
	}
	return err
}

func readConfig(f *os.File) (control.Config, error) {
	defer f.Close()
	var cfg control.Config
	if err := json.NewDecoder(f).Decode(&cfg); err != nil {
		return cfg, fault.New(fault.Invalid, "worker: read configuration: %w", err)
	}
	return cfg, nil
}

// Worker serves the repository of one family.
type Worker struct {
	cfg  control.Config
	log  *slog.Logger
	repo *durable.Repository

	// writing lets one checkpoint be written at a time: their chunks are many,
	// and two only take each other's time.
	writing sync.Mutex
	collect collector

	awaiting *awaiting

	mu   sync.Mutex
	gate *control.Gate // of the client that came last; nil: none

	ctx     context.Context // of the clients' goroutines
	cancel  context.CancelFunc
	serving sync.WaitGroup
}

// Open opens the repository, making it if there is none.
func Open(cfg control.Config, log *slog.Logger) (*Worker, error) {
	log = log.With("family", cfg.Family)
	if err := os.MkdirAll(cfg.Repository, 0o700); err != nil {
		return nil, fault.New(fault.Internal, "make the directory of durable checkpoints: %w", err)
	}
	repo, err := durable.Open(cfg.Repository, durable.Options{Log: log})
	if err != nil {
		return nil, err
	}
	w := &Worker{cfg: cfg, log: log, repo: repo, awaiting: newAwaiting()}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.collect.start(w)
	return w, nil
}

// Close ends all clients and closes the repository.
func (w *Worker) Close() {
	w.cancel()
	w.serving.Wait()
	w.collect.stop()
	if err := w.repo.Close(); err != nil {
		w.log.Error("close the repository", "error", err)
	}
	if w.gate != nil {
		w.gate.Close()
	}
}

// hostVerbs returns the mux of the host's connection.
func (w *Worker) hostVerbs() *wire.Mux {
	m := wire.NewMux()
	wire.Handle(m, control.VerbClient, func(_ context.Context, _ wire.None, files []*os.File) (wire.None, []*os.File, error) {
		if len(files) != 1 {
			return wire.None{}, nil, fault.New(fault.Invalid, "a client is one socket, not %d", len(files))
		}
		return wire.None{}, nil, w.Serve(files[0])
	})
	return m
}

// Serve serves one more client, until it is gone. The socket stays the
// caller's.
func (w *Worker) Serve(socket *os.File) error {
	sock, err := wire.Open(socket)
	if err != nil {
		return err
	}
	peer := wire.NewPeer(sock, w.verbs(), w.log)
	w.serving.Go(func() {
		if err := peer.Serve(w.ctx); err != nil && w.ctx.Err() == nil {
			w.log.Warn("client cut off", "error", err)
		}
	})
	return nil
}

// pass waits while a checkpoint stands.
func (w *Worker) pass(ctx context.Context) {
	w.mu.Lock()
	g := w.gate
	w.mu.Unlock()
	if g != nil {
		g.Pass(ctx)
	}
}
