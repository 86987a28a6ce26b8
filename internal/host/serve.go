package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/child"
	"github.com/sandtree/sandtree/internal/host/idrange"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/linux/statdev"
	supervisor "github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

// host is a running daemon's root part.
type host struct {
	cfg      Config
	layout   layout.Layout
	cgroups  cgroup.Layout
	log      *slog.Logger
	started  time.Time
	reaper   *child.Reaper
	held     *os.File
	listener *os.File
	families *families
	node     node
	verbs    *wire.Mux
	hurry    <-chan struct{} // closed when sandboxes are not to be hibernated
	// numbers makes, the first time, what shows the sandboxes' device numbers,
	// and returns nil where the kernel cannot.
	numbers func() *statdev.Attachment
	// ledger is where the supervisors tell each other what checkpoints take in
	// memory.
	ledger *supervisor.Ledger
}

// Serve runs a daemon until ctx ends, or SIGTERM, SIGINT or SIGHUP comes; then it
// hibernates what runs, as [Config] says, removes everything that it made but the
// state directory, and returns nil. A second signal, or SIGUSR1 at once, leaves the
// hibernation out.
//
// It is called early in the process, before other goroutines have done work:
// the process executes itself again with the same arguments, and Serve goes on
// in that run. Nothing else in the process may start or wait for children.
//
// Errors: [fault.Permission] without root; [fault.Unsupported] where the
// kernel lacks what nothing runs without; [fault.Conflict] when another
// daemon runs on the state directory or socket; [fault.Unavailable] when no
// node comes up.
func Serve(ctx context.Context, cfg Config) error {
	l, err := layout.Of(cfg.State)
	if err != nil {
		return err
	}
	if cfg, err = cfg.withDefaults(l); err != nil {
		return err
	}
	if err := enterNamespace(); err != nil {
		return err
	}
	if err := feature.Require(ctx); err != nil {
		return err
	}
	hurry := make(chan struct{})
	ctx, stop := untilSignal(ctx, hurry)
	defer stop()

	unix.Umask(0o022) // the node must be able to enter the run directory
	if err := os.MkdirAll(l.State, 0o711); err != nil {
		return fault.New(fault.Internal, "make state directory: %w", err)
	}
	locked, err := lock(l, cfg.Socket)
	if err != nil {
		return err
	}
	defer locked.Close()
	h := &host{cfg: cfg, layout: l, log: cfg.Log, started: time.Now(), hurry: hurry}
	h.numbers = sync.OnceValue(h.attachNumbers)
	err = h.serve(ctx)
	if ctx.Err() != nil && fault.Is(err, fault.Canceled) {
		err = nil // asked to end while it was starting
	}
	return errors.Join(err, h.close())
}

// untilSignal returns a context that ends with the first signal to end. Another one
// closes hurry, as does SIGUSR1.
func untilSignal(ctx context.Context, hurry chan<- struct{}) (context.Context, context.CancelFunc) {
	signals := []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGUSR1}
	if !signal.Ignored(unix.SIGHUP) { // nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan os.Signal, 4)
	signal.Notify(got, signals...)
	ended := make(chan struct{})
	go func() {
		signaled, hurried := false, false
		for {
			select {
			case s := <-got:
				if (signaled || s == unix.SIGUSR1) && !hurried {
					hurried = true
					close(hurry)
				}
				signaled = true
				cancel()
			case <-ended:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(ended)
		cancel()
	}
}

// serve sets the daemon up and keeps a node running. What it made is removed
// by close, also after an error.
func (h *host) serve(ctx context.Context) error {
	go h.numbers() // it takes some tenths of a second
	var err error
	if h.reaper, err = child.NewReaper(); err != nil {
		return err
	}
	if h.cgroups, err = cgroup.Detect(); err != nil {
		return err
	}
	parent, err := freshCgroup(ctx, h.cgroups, h.layout.Name)
	if err != nil {
		return err
	}
	if h.ledger, err = supervisor.NewLedger(); err != nil {
		return err
	}
	h.families = newFamilies(h, parent)
	if h.held, err = hold(ctx, h.layout); err != nil {
		return err
	}
	if err := makeDirectories(h.layout, h.cfg.NodeID); err != nil {
		return err
	}
	if err := removeRemains(h.layout); err != nil {
		return err
	}
	if h.families.ids, err = idrange.Open(h.layout.Families()); err != nil {
		return err
	}
	if err := showNodeState(h.layout); err != nil {
		return err
	}
	if h.listener, err = listen(h.cfg.Socket); err != nil {
		return err
	}
	h.verbs = h.newVerbs()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go h.watchDisk(watching)
	h.log.Info("serving", "state", h.layout.State, "socket", h.cfg.Socket, "cgroups", h.cgroups.String())
	return h.runNodes(ctx)
}

// close removes what serve made. The node is gone by then.
func (h *host) close() error {
	var errs []error
	if h.listener != nil {
		errs = append(errs, removeIfThere(h.cfg.Socket), h.listener.Close())
	}
	if h.families != nil {
		errs = append(errs, h.families.close())
	}
	if h.held != nil {
		_ = hideNodeState(h.layout) // not there after an early error
		h.held.Close()
	}
	h.numbers().Close()
	if h.ledger != nil {
		h.ledger.Close()
	}
	if h.reaper != nil {
		h.reaper.Close()
	}
	// Theirs only if nothing of somebody else's is in them.
	os.Remove(h.layout.Run())
	os.Remove(filepath.Dir(h.layout.Run()))
	return errors.Join(errs...)
}

// attachNumbers goes without where the kernel cannot: sandtree doctor says what
// is lost.
func (h *host) attachNumbers() *statdev.Attachment {
	a, err := statdev.Attach()
	if err != nil {
		h.log.Warn("st_dev of files will change at restores", "error", err)
		return nil
	}
	return a
}
