package host

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/child"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/wire"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// workerGroup is the cgroup of a family's worker.
const workerGroup = "worker"

// workers keeps a worker running for a family, from when its supervisor is
// ready until it ends.
type workers struct {
	families *families
	family   *family
	end      context.CancelFunc
	done     chan struct{}
}

func (fs *families) startWorkers(f *family) *workers {
	ctx, cancel := context.WithCancel(context.Background())
	w := &workers{families: fs, family: f, end: cancel, done: make(chan struct{})}
	go w.run(ctx)
	return w
}

// stop ends the worker and waits for its end. What it was writing is not
// durable, and leaves nothing that counts.
func (w *workers) stop() {
	w.end()
	<-w.done
}

// run starts workers, each after the one before it has ended: at once, and with
// a growing delay if that one lived for less than steadyAfter.
func (w *workers) run(ctx context.Context) {
	defer close(w.done)
	log, delay := w.family.logger(w.families.host.log), time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		reason, err := w.runOne(ctx)
		if ctx.Err() != nil || w.family.gone() {
			return
		}
		if time.Since(began) > steadyAfter {
			delay = 0
		}
		if err != nil {
			log.Error("the worker cannot be started; trying again", "error", err, "in", delay)
		} else {
			log.Error("the worker died; starting another", "reason", reason, "in", delay)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(max(2*delay, firstDelay), lastDelay)
	}
}

// workerCapabilities are for files of any owner and kind, and for the attributes
// that overlay keeps (SYS_ADMIN; btrfs lets nobody else search its trees either), and to be
// as fast as others while somebody waits (SYS_NICE).
var workerCapabilities = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD,
	unix.CAP_SETFCAP, unix.CAP_SYS_ADMIN, unix.CAP_SYS_NICE,
}

// runOne runs one worker until it ends, or ctx does. reason says how it ended.
func (w *workers) runOne(ctx context.Context) (reason string, err error) {
	fs, f := w.families, w.family
	group, err := f.cgroup.NewGroup(workerGroup, cgroup.Limits{})
	if err != nil {
		return "", err
	}
	defer group.Close()
	defer func() {
		// It is empty: the worker starts nothing.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
		defer cancel()
		if e := group.Remove(ctx); err == nil {
			err = e
		}
	}()
	repository := fs.host.layout.Repository(f.id)
	if err := os.MkdirAll(repository, 0o700); err != nil {
		return "", fault.New(fault.Internal, "make the directory of durable checkpoints: %w", err)
	}
	config, err := configFile(worker.Config{Family: f.id, Repository: repository, Layers: f.layers, OtherKernel: fs.host.cfg.OtherKernel})
	if err != nil {
		return "", err
	}
	defer config.Close()
	ours, theirs, err := wire.Pair()
	if err != nil {
		return "", err
	}
	defer theirs.Close()
	c, err := fs.host.reaper.Start(child.Spec{
		Path:     fs.host.cfg.Executable,
		Args:     []string{"sandtree", "worker", "--family", f.id},
		Env:      supervisorEnvironment(os.Environ()),
		Files:    []*os.File{theirs, config, fs.host.held},
		CgroupFD: group.FD(),
		Confined: &child.Confinement{
			Capabilities: workerCapabilities, Writable: []string{repository, fs.host.layout.PoolMount(f.id)},
		},
	})
	if err != nil {
		ours.Close()
		return "", err
	}
	theirs.Close() // so that the end is seen
	client, err := worker.NewClient(ours)
	if err == nil {
		defer client.Close()
		if err = group.Add(c.PID()); err == nil {
			err = w.introduce(ctx, client)
		}
	}
	if err != nil {
		c.Signal(unix.SIGKILL)
		<-c.Done()
		return "", err
	}
	select {
	case <-c.Done():
	case <-client.Done():
		stop(c) // one that closed its connection is of no use
	case <-ctx.Done():
		client.Close() // its sign to end
		stop(c)
	}
	return c.Reason(), nil
}

// introduce connects the worker with the supervisor.
func (w *workers) introduce(ctx context.Context, client *worker.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, stopWithin, fault.New(fault.Deadline, "the worker and the supervisor do not find each other"))
	defer cancel()
	a, b, err := wire.Pair()
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	if err := client.Serve(ctx, a); err != nil {
		return err
	}
	return w.family.supervisor.Worker(ctx, b)
}
