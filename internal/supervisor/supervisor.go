package supervisor

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/linux/statdev"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

const (
	// defaultHeap is the soft limit of the heap. Pages of sandboxes are not
	// in it.
	defaultHeap = 512 << 20
	// heapGrowth is GOGC: collections are few, since each one that meets a
	// frozen window makes it longer.
	heapGrowth = 400
	// closeTime bounds an orderly end; the host kills what is left.
	closeTime = 8 * time.Second
)

// Main runs a supervisor with the descriptors it was started with, until the
// host's connection ends or ctx does. It is the whole process.
func Main(ctx context.Context, log *slog.Logger, newEngine NewEngine) error {
	for _, fd := range []int{control.FDControl, control.FDConfig} {
		unix.CloseOnExec(fd)
	}
	sock, err := wire.Open(os.NewFile(control.FDControl, "control socket"))
	if err != nil {
		return fault.New(fault.Invalid, "supervisor: %w", err).WithHint("this command is started by sandtree serve")
	}
	cfg, err := readConfig(os.NewFile(control.FDConfig, "configuration"))
	if err != nil {
		sock.Close()
		return err
	}
	if err := openLedger(&cfg); err != nil {
		return err
	}
	if err := openNumbers(&cfg); err != nil {
		sock.Close()
		return err
	}
	heap := cfg.HeapBytes
	if heap == 0 {
		heap = defaultHeap
	}
	debug.SetMemoryLimit(heap)
	debug.SetGCPercent(heapGrowth)
	sched.SpareProcessors()

	s := &supervisor{
		log:     log.With("family", cfg.Family),
		clients: newClients(),
		ready:   make(chan struct{}),
	}
	s.host = wire.NewPeer(sock, s.hostVerbs(), s.log)
	return s.run(ctx, cfg, newEngine)
}

func readConfig(f *os.File) (control.Config, error) {
	defer f.Close()
	var cfg control.Config
	if err := json.NewDecoder(f).Decode(&cfg); err != nil {
		return cfg, fault.New(fault.Invalid, "supervisor: read configuration: %w", err)
	}
	return cfg, nil
}

// openNumbers takes the descriptors of what shows device numbers. They are this
// process's until its end: bodies that outlive the host for a moment need them.
func openNumbers(cfg *control.Config) (err error) {
	if cfg.Numbers == 0 {
		return nil
	}
	fds := make([]int, cfg.Numbers)
	for i := range fds {
		fds[i] = control.FDNumbers + i
		unix.CloseOnExec(fds[i])
	}
	cfg.Devices, err = statdev.OpenTable(fds, cfg.IDBase)
	return err
}

// openLedger takes the descriptor of the ledger of all families.
func openLedger(cfg *control.Config) (err error) {
	if !cfg.Shared {
		return nil
	}
	fd := control.FDNumbers + cfg.Numbers
	unix.CloseOnExec(fd)
	cfg.Ledger, err = control.OpenLedger(os.NewFile(uintptr(fd), "ledger"))
	return err
}

type supervisor struct {
	log     *slog.Logger
	host    *wire.Peer
	clients *clients

	// The engine starts when the host asks for it the first time: until then
	// the host is still placing this process.
	start  func()
	ready  chan struct{} // closed when engine or failed is set
	engine Engine
	failed error

	// serving are the clients' goroutines; ctx is theirs.
	ctx     context.Context
	serving sync.WaitGroup
}

func (s *supervisor) run(ctx context.Context, cfg control.Config, newEngine NewEngine) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.ctx = ctx
	var making sync.WaitGroup
	s.start = sync.OnceFunc(func() {
		making.Go(func() {
			s.engine, s.failed = newEngine(cfg, s.clients.events(), s.log)
			close(s.ready)
		})
	})
	err := s.host.Serve(ctx)
	if ctx.Err() != nil {
		err = nil // an orderly end
	}
	cancel()
	making.Wait()
	s.serving.Wait()
	if s.engine == nil {
		return err // if it could not start, the host was told
	}
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if e := s.engine.Close(ctx); err == nil {
		err = e
	}
	return err
}

// hostVerbs returns the mux of the host's connection.
func (s *supervisor) hostVerbs() *wire.Mux {
	m := wire.NewMux()
	wire.Handle(m, control.VerbReady, func(ctx context.Context, _ wire.None, _ []*os.File) (wire.None, []*os.File, error) {
		return wire.None{}, nil, s.awaitReady(ctx)
	})
	wire.Handle(m, control.VerbClient, func(ctx context.Context, _ wire.None, files []*os.File) (wire.None, []*os.File, error) {
		if len(files) != 1 {
			return wire.None{}, nil, fault.New(fault.Invalid, "a client is one socket, not %d", len(files))
		}
		if err := s.awaitReady(ctx); err != nil {
			return wire.None{}, nil, err
		}
		sock, err := wire.Open(files[0])
		if err != nil {
			return wire.None{}, nil, err
		}
		peer := wire.NewPeer(sock, s.verbs(), s.log)
		// This runs in a call of the host's, so run is not past its Wait.
		s.serving.Go(func() {
			s.clients.add(peer)
			defer s.clients.remove(peer)
			if err := peer.Serve(s.ctx); err != nil && s.ctx.Err() == nil {
				s.log.Warn("client cut off", "error", err)
			}
		})
		return wire.None{}, nil, nil
	})
	wire.Handle(m, control.VerbWorker, func(ctx context.Context, _ wire.None, files []*os.File) (wire.None, []*os.File, error) {
		if len(files) != 1 {
			return wire.None{}, nil, fault.New(fault.Invalid, "a worker is one socket, not %d", len(files))
		}
		if err := s.awaitReady(ctx); err != nil {
			return wire.None{}, nil, err
		}
		return wire.None{}, nil, s.engine.UseWorker(ctx, files[0])
	})
	return m
}

func (s *supervisor) awaitReady(ctx context.Context) error {
	s.start()
	select {
	case <-s.ready:
		return s.failed
	case <-ctx.Done():
		return ctx.Err()
	}
}
