package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/child"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/host/idrange"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	supervisor "github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

// supervisorGroup is the cgroup of a family's supervisor itself, beside those
// of its incarnations: its stubs and zygotes are in it, so that nothing of
// the family is outside of the family's cgroup.
const supervisorGroup = "supervisor"

// family is a running family: what it has on the host, in the order in which
// it is made.
type family struct {
	id      string
	layers  []string
	idBase  uint32
	started time.Time

	mounted    []string // of layers
	poolFile   string
	pool       *pool.Pool
	cgroup     *cgroup.Parent
	group      *cgroup.Group
	process    *child.Child
	supervisor *supervisor.Client
	account    *supervisor.Account // of the ledger

	// The worker may be another one from time to time, see worker.go.
	workers *workers
}

// start makes a family. On error nothing of it is left.
func (fs *families) start(ctx context.Context, req control.EnsureFamilyRequest) (*family, error) {
	f := &family{id: req.Family, layers: slices.Clone(req.Layers), started: time.Now()}
	err := fs.build(ctx, f, req)
	if err == nil {
		return f, nil
	}
	if f.process != nil && fault.Is(err, fault.Unavailable) {
		f.process.Signal(unix.SIGKILL)
		err = fault.New(fault.Unavailable, "%w: the supervisor %s", err, f.process.Reason())
	}
	err = fmt.Errorf("start family %s: %w", f.id, err)
	if e := fs.clean(f); e != nil {
		fs.host.log.Error("clean up after a family that did not start", "family", f.id, "error", e)
	}
	return nil, err
}

func (fs *families) build(ctx context.Context, f *family, req control.EnsureFamilyRequest) (err error) {
	if f.idBase, err = fs.ids.Take(f.id); err != nil {
		return err
	}
	l := fs.host.layout
	cfg := supervisor.Config{
		Family:       f.id,
		Pool:         l.PoolMount(f.id),
		Attach:       l.AttachPoint(f.id),
		CgroupParent: l.Name,
		CgroupFamily: f.id,
		IDBase:       f.idBase,
		Durable:      true,

		CheckpointMemory: fs.host.cfg.CheckpointMemory,
		Numbers:          len(fs.host.numbers().Files()),
		Shared:           true,
		Row:              idrange.Index(f.idBase),
	}
	if f.account, err = fs.host.ledger.Account(cfg.Row); err != nil {
		return err
	}
	for _, d := range f.layers {
		if err := fs.layers.take(d); err != nil {
			return err
		}
		f.mounted = append(f.mounted, d)
		cfg.Layers = append(cfg.Layers, l.LayerMount(d))
	}
	if err := fs.openPool(ctx, f, req.DiskBytes); err != nil {
		return err
	}
	if f.cgroup, err = fs.parent.Child(f.id); err != nil {
		return err
	}
	if f.group, err = f.cgroup.NewGroup(supervisorGroup, cgroup.Limits{}); err != nil {
		return err
	}
	if err := fs.startSupervisor(f, cfg); err != nil {
		return err
	}
	if err := f.supervisor.Ready(ctx); err != nil {
		return err
	}
	f.workers = fs.startWorkers(f)
	return nil
}

func (fs *families) openPool(ctx context.Context, f *family, limit int64) (err error) {
	l, cfg := fs.host.layout, fs.host.cfg
	f.poolFile = filepath.Join(l.Pools(), f.id+".img")
	target := l.PoolMount(f.id)
	for _, dir := range []string{target, l.AttachPoint(f.id)} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fault.New(fault.Internal, "mount pool: %w", err)
		}
	}
	f.pool, err = pool.Open(ctx, pool.Config{
		Path:        f.poolFile,
		MountPoint:  target,
		Initial:     cfg.PoolBytes,
		Max:         limit,
		HostReserve: cfg.HostReserve,
		Log:         fs.host.log.With("family", f.id),
	})
	return err
}

// startSupervisor starts the process in the family's cgroup and connects.
func (fs *families) startSupervisor(f *family, cfg supervisor.Config) error {
	config, err := configFile(cfg)
	if err != nil {
		return err
	}
	defer config.Close()
	ours, theirs, err := wire.Pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	f.process, err = fs.host.reaper.Start(child.Spec{
		Path:     fs.host.cfg.Executable,
		Args:     []string{"sandtree", "supervisor", "--family", f.id},
		Env:      supervisorEnvironment(os.Environ()),
		Files:    slices.Concat([]*os.File{theirs, config, fs.host.held}, fs.host.numbers().Files(), []*os.File{fs.host.ledger.File()}),
		CgroupFD: f.group.FD(),
	})
	if err != nil {
		ours.Close()
		return err
	}
	f.supervisor, err = supervisor.NewClient(ours, supervisor.Events{})
	if err != nil {
		return err
	}
	// Its engine starts with the first verb, so what that starts is in the
	// group too.
	return f.group.Add(f.process.PID())
}

// configFile returns a file in memory with the configuration.
func configFile(cfg any) (*os.File, error) {
	b, err := json.Marshal(cfg)
	if err != nil {
		return nil, fault.New(fault.Internal, "configuration: %w", err)
	}
	fd, err := unix.MemfdCreate("configuration", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fault.New(fault.Internal, "configuration: %w", err)
	}
	f := os.NewFile(uintptr(fd), "configuration")
	if _, err = f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, fault.New(fault.Internal, "configuration: %w", err)
	}
	return f, nil
}

// supervisorEnvironment leaves out what the user's shell has for other
// programs: proxies with passwords, keys.
func supervisorEnvironment(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return k != "PATH" && k != "GODEBUG" && k != "GOTRACEBACK" && k != "LANG" && !strings.HasPrefix(k, "SANDTREE_")
	})
}

// client returns a new connection to the family's supervisor.
func (f *family) client(ctx context.Context) (*os.File, error) {
	ours, theirs, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	if err := f.supervisor.Client(ctx, ours); err != nil {
		theirs.Close()
		return nil, err
	}
	return theirs, nil
}

// gone tells whether the supervisor has closed its connection, which it does
// at its end only.
func (f *family) gone() bool {
	select {
	case <-f.supervisor.Done():
		return true
	default:
		return false
	}
}

// clean ends what still runs of a family and removes what it has on the host.
// It does all that can be done, whatever fails.
func (fs *families) clean(f *family) error {
	var errs []error
	if f.supervisor != nil {
		f.supervisor.Close()
	}
	if f.workers != nil {
		f.workers.stop()
	}
	if f.process != nil {
		f.process.Signal(unix.SIGKILL)
		<-f.process.Done()
	}
	if f.account != nil {
		f.account.Clear()
	}
	if f.group != nil {
		f.group.Close()
	}
	if f.cgroup != nil {
		errs = append(errs, removeCgroup(context.Background(), f.cgroup))
	}
	if f.idBase != 0 {
		errs = append(errs, fs.host.numbers().Forget(f.idBase))
	}
	if f.poolFile != "" {
		errs = append(errs, detach(fs.host.layout.AttachPoint(f.id)))
	}
	if f.pool != nil {
		errs = append(errs, f.pool.Destroy())
	}
	if f.poolFile != "" {
		errs = append(errs, removeIfThere(f.poolFile), removeIfThere(fs.host.layout.PoolMount(f.id)), removeIfThere(fs.host.layout.AttachPoint(f.id)))
	}
	for _, d := range f.mounted {
		errs = append(errs, fs.layers.release(d))
	}
	return errors.Join(errs...)
}

// detach takes off what a supervisor that was killed has left attached.
func detach(dir string) error {
	for {
		err := mount.Detach(dir)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // no mount point
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// end ends a family in order.
func (fs *families) end(f *family) error {
	f.workers.stop()
	f.supervisor.Close() // its sign to end
	late := time.AfterFunc(stopWithin, func() { f.process.Signal(unix.SIGKILL) })
	defer late.Stop()
	<-f.process.Done()
	return fs.clean(f)
}

func (f *family) describe() control.Family {
	return control.Family{ID: f.id, PID: f.process.PID(), Started: f.started, Layers: f.layers, IDBase: f.idBase}
}

func (f *family) logger(log *slog.Logger) *slog.Logger {
	return log.With("family", f.id, "supervisor", f.process.PID())
}
