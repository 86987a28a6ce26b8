package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Spec is what an incarnation is booted from.
type Spec struct {
	// Root is a detached mount of the root, its ids mapped as the seed's. Boot
	// owns it: it is closed whether Boot succeeds or not.
	Root int
	// Hostname inside; it can be set again. Empty means "sandbox".
	Hostname string
	// Cgroup holds the incarnation's processes. The incarnation owns it from
	// now on, and removes it at its end; also if Boot fails.
	Cgroup *cgroup.Group
	// ShmBytes is the size of /dev/shm; 0 means 64 MiB.
	ShmBytes int64
	// KeepFiles leaves the root's files alone; otherwise /etc/hostname,
	// /etc/hosts and /etc/resolv.conf are made where they are missing.
	KeepFiles bool
	// Walls confine the commands, and hide parts of proc and sysfs.
	Walls *confine.Walls
}

const defaultShmBytes = 64 << 20

// namespaces of an incarnation but those of cgroups and time, which PID 1
// leaves by itself.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Boot makes an incarnation with a PID 1 and no other process. Errors are of
// kind Invalid for a root or name that can never work, Exhausted when a limit
// was reached, Unavailable when the seed has ended, else Internal; nothing is
// left behind.
func (s *Seed) Boot(spec Spec) (*Incarnation, error) {
	b, err := s.Prepare(spec.Cgroup, spec.Walls)
	if err != nil {
		unix.Close(spec.Root)
		return nil, err
	}
	return b.Attach(spec)
}

// Blank is an incarnation without a root: all of a boot that can be done before
// it is known whose incarnation it will be.
type Blank struct{ i *Incarnation }

// Prepare makes a blank in a cgroup, which the incarnation owns from now on as
// [Spec] says. Errors are those of [Seed.Boot].
func (s *Seed) Prepare(group *cgroup.Group, walls *confine.Walls) (_ *Blank, err error) {
	if group == nil || walls == nil {
		return nil, fault.New(fault.Invalid, "boot: a cgroup and walls are needed")
	}
	i := &Incarnation{seed: s, group: group, walls: walls, owner: s.nextOwner(), pidfd: -1, processes: map[int]*Process{}, claims: map[int]*Process{}}
	defer func() {
		if err != nil {
			i.abandon()
		}
	}()
	view, err := openLimitsView(group)
	if err != nil {
		return nil, fault.New(fault.Internal, "boot: show the cgroup: %w", err)
	}
	defer view.close()
	dev, err := devMount(int(s.idmap.Host))
	if err != nil {
		return nil, fault.New(fault.Internal, "boot: make /dev: %w", err)
	}
	defer unix.Close(dev)

	server, err := i.clone(append([]int{dev}, view.fds...))
	if err != nil {
		return nil, bootError(err)
	}
	if err := i.admit(); err != nil {
		_ = server.Close()
		return nil, bootError(err)
	}
	b := tracee.NewBatch()
	queueIdentity(b)
	queueStage(b, &view, walls)
	queueLoopback(b)
	b.ReportExits()
	queueClosed(b)
	if err := server.Do(b); err != nil {
		_ = server.Close()
		return nil, bootError(err)
	}
	if err := i.showStage(); err != nil {
		_ = server.Close()
		return nil, err
	}
	if i.init, err = tracee.NewInit(server, i.ended); err != nil {
		_ = server.Close()
		return nil, bootError(err)
	}
	go i.watch()
	return &Blank{i}, nil
}

// Attach gives the blank its root, and so makes it an incarnation. The spec's
// cgroup and walls are those that the blank was prepared with, whatever it says. Of
// a blank that could not be attached nothing is left.
func (b *Blank) Attach(spec Spec) (_ *Incarnation, err error) {
	defer unix.Close(spec.Root)
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.Background(), bootPatience)
			defer cancel()
			err = errors.Join(err, b.i.Close(ctx))
		}
	}()
	if spec.Hostname == "" {
		spec.Hostname = "sandbox"
	}
	if err := checkHostname(spec.Hostname); err != nil {
		return nil, err
	}
	if err := b.i.showRoot(spec.Root); err != nil {
		return nil, err
	}
	q := tracee.NewBatch()
	queueReceive(q, 1) // the root
	queueRoot(q)
	if spec.ShmBytes > 0 {
		q.Call(unix.SYS_MOUNT, 0, "dev/shm", 0, unix.MS_REMOUNT|noAll, fmt.Sprintf("size=%d", spec.ShmBytes))
	}
	queuePivot(q)
	queueHostname(q, spec.Hostname)
	if !spec.KeepFiles {
		queueDefaultFiles(q, spec.Hostname)
	}
	q.Call(unix.SYS_UMASK, 0o022)
	queueEmpty(q)
	queueClosed(q)
	if err := b.i.Do(q, spec.Root); err != nil {
		return nil, bootError(err)
	}
	return b.i, nil
}

// PIDFD is [Incarnation.PIDFD].
func (b *Blank) PIDFD() int { return b.i.PIDFD() }

// Namespace is [Incarnation.Namespace].
func (b *Blank) Namespace(k namespace.Kind) (fd int, err error) { return b.i.Namespace(k) }

// SetClocks is [Incarnation.SetClocks].
func (b *Blank) SetClocks(monotonic, boottime time.Duration) error {
	return b.i.SetClocks(monotonic, boottime)
}

// Done is closed when the blank's PID 1 has ended, as [Incarnation.Done].
func (b *Blank) Done() <-chan struct{} { return b.i.Done() }

// Cgroup is the group that the blank is in.
func (b *Blank) Cgroup() *cgroup.Group { return b.i.group }

// Close ends a blank that is not attached, as [Incarnation.Close].
func (b *Blank) Close(ctx context.Context) error { return b.i.Close(ctx) }

// clone has the seed make PID 1, with descriptors that become the numbers from
// 0, and waits for its first word.
func (i *Incarnation) clone(fds []int) (*tracee.Server, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	n := len(fds)
	sent := append(append([]int(nil), fds...), i.group.FD(), pair[1])
	b := tracee.NewBatch()
	queueReceive(b, len(sent))
	queueAs(b, i.owner)
	pid, _ := b.Fork(tracee.CloneArgs{
		Flags: namespaces | unix.CLONE_INTO_CGROUP, ExitSignal: uint64(unix.SIGCHLD), Cgroup: uint64(n),
	}, tracee.EndServe, func(c *tracee.Batch) {
		c.Call(unix.SYS_DUP3, n+1, tracee.ControlFD, unix.O_CLOEXEC)
		c.Call(unix.SYS_CLOSE_RANGE, n, n+1, 0)
	})
	_, err = doAnd(i.seed.server, queueSelf, b, 0, sent...)
	unix.Close(pair[1])
	if err != nil {
		unix.Close(pair[0])
		return nil, err
	}
	i.pid = b.Value(pid)
	server := tracee.NewServer(i.pid, pair[0])
	if err := i.welcome(server); err != nil {
		_ = server.Close()
		return nil, err
	}
	return server, nil
}

func (i *Incarnation) welcome(server *tracee.Server) (err error) {
	if i.pidfd, err = unix.PidfdOpen(i.pid, 0); err != nil {
		return err
	}
	return server.Hello()
}

// admit gives PID 1 its ids and its place in v1 cgroups.
func (i *Incarnation) admit() error {
	if err := writeIDMap(i.seed.idmap, i.pid); err != nil {
		return err
	}
	return i.group.Add(i.pid)
}

func bootError(err error) error {
	var call *tracee.CallError
	switch {
	case errors.Is(err, tracee.ErrGone):
		return fault.New(fault.Unavailable, "boot: the seed or the new PID 1 was killed: %w", err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EUSERS):
		return fault.New(fault.Exhausted, "boot: %w", err).
			WithHint("raise the host's limit: see /proc/sys/user, /proc/sys/kernel/pid_max and the cgroup's pids.max and memory")
	case errors.As(err, &call) && call.Name == "openat2":
		return fault.New(fault.Invalid, "boot: the root's /proc, /sys and /dev must be directories: %w", err)
	}
	return fault.New(fault.Internal, "boot: %w", err)
}

// checkHostname refuses what sethostname(2) would, and names that break the
// line of /etc/hosts that they stand in.
func checkHostname(name string) error {
	ok := name != "" && len(name) <= 64
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	}
	if !ok {
		return fault.New(fault.Invalid, "%.80q cannot be a hostname: letters, digits, dot, - and _ are allowed, up to 64", name)
	}
	return nil
}
