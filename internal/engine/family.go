package engine

import (
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/rootfs/overlay"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tracee"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// family is what the sandboxes of an engine share.
type family struct {
	log     *slog.Logger
	seed    *sandbox.Seed
	store   rootfs.Store
	blanks  *blanks
	walls   [2]*confine.Walls // without and with setuid programs
	idBase  uint32
	window  window
	crew    sched.Crew // does what is done beside a body's thread while processes stand
	arenas  arenas
	files   recycler // for shared memory of checkpoints
	keeper  *keeper
	evictor *evictor

	unaccepted unaccepted
}

func newFamily(cfg control.Config, log *slog.Logger) (_ *family, err error) {
	f := &family{log: log, idBase: cfg.IDBase, unaccepted: unaccepted{log: log}}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	for i, setuid := range []bool{false, true} {
		if f.walls[i], err = confine.New(confine.Policy{Setuid: setuid}); err != nil {
			return nil, err
		}
	}
	layout, err := cgroup.Detect()
	if err != nil {
		return nil, err
	}
	parent, err := layout.OpenParent(cfg.CgroupParent)
	if err != nil {
		return nil, err
	}
	group, err := parent.Child(cfg.CgroupFamily)
	if err != nil {
		return nil, err
	}
	program, err := tracee.NewProgram()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	idmap := confine.IDMap{Host: cfg.IDBase}
	if f.window.gate, err = worker.NewGate(); err != nil {
		return nil, err
	}
	if f.seed, err = sandbox.NewSeed(program, idmap, cfg.Devices); err != nil {
		return nil, err
	}
	f.blanks = newBlanks(f.seed, group, f.walls[0], log)
	userns, err := f.seed.NewUserns(idmap)
	if err != nil {
		return nil, err
	}
	defer unix.Close(userns)
	store, err := overlay.Open(overlay.Config{Pool: cfg.Pool, Layers: cfg.Layers, UserNS: userns, Attach: cfg.Attach, Log: log})
	if err != nil {
		return nil, fmt.Errorf("open the family's files: %w", err)
	}
	f.store = store // after the error: no store in an interface is not nil
	return f, nil
}

func (f *family) close() error {
	f.arenas.close()
	f.files.close()
	f.crew.Close()
	f.unaccepted.close()
	if f.blanks != nil {
		f.blanks.close()
	}
	if f.window.gate != nil {
		f.window.gate.Close()
	}
	var errs []error
	if f.store != nil {
		errs = append(errs, f.store.Close())
	}
	if f.seed != nil {
		errs = append(errs, f.seed.Close())
	}
	return errors.Join(errs...)
}

func (f *family) wallsFor(setuid bool) *confine.Walls {
	if setuid {
		return f.walls[1]
	}
	return f.walls[0]
}

// limits are a sandbox's, as its cgroup takes them.
func limits(r control.Resources) (cgroup.Limits, error) {
	l := cgroup.Limits{MemoryBytes: r.MemoryBytes, CPUs: r.CPUs, PIDs: r.PIDs}
	if r.DiskBytes < 0 {
		return l, fault.New(fault.Invalid, "a disk limit of %d bytes", r.DiskBytes)
	}
	return l, l.Check()
}
