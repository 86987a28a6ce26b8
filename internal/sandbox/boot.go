package sandbox

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
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
func (s *Seed) Boot(spec Spec) (_ *Incarnation, err error) {
	if spec.Cgroup == nil || spec.Walls == nil {
		unix.Close(spec.Root)
		return nil, fault.New(fault.Invalid, "boot: a cgroup and walls are needed")
	}
	defer unix.Close(spec.Root)
	i := &Incarnation{seed: s, group: spec.Cgroup, walls: spec.Walls, pidfd: -1, processes: map[int]*Process{}, claims: map[int]*Process{}}
	defer func() {
		if err != nil {
			i.abandon()
		}
	}()
	if spec.Hostname == "" {
		spec.Hostname = "sandbox"
	}
	if err := checkHostname(spec.Hostname); err != nil {
		return nil, err
	}
	if spec.ShmBytes == 0 {
		spec.ShmBytes = defaultShmBytes
	}
	view, err := openLimitsView(spec.Cgroup)
	if err != nil {
		return nil, fault.New(fault.Internal, "boot: show the cgroup: %w", err)
	}
	defer view.close()
	dev, err := devMount(int(s.idmap.Host))
	if err != nil {
		return nil, fault.New(fault.Internal, "boot: make /dev: %w", err)
	}
	defer unix.Close(dev)

	server, err := i.clone(append([]int{spec.Root, dev}, view.fds...))
	if err != nil {
		return nil, bootError(err)
	}
	if err := i.admit(); err != nil {
		_ = server.Close()
		return nil, bootError(err)
	}
	b := tracee.NewBatch()
	queueIdentity(b)
	queueMounts(b, &view, spec.Walls, spec.ShmBytes)
	queueHostname(b, spec.Hostname)
	queueLoopback(b)
	if !spec.KeepFiles {
		queueDefaultFiles(b, spec.Hostname)
	}
	b.Call(unix.SYS_UMASK, 0o022)
	b.ReportExits()
	queueClosed(b)
	if err := server.Do(b); err != nil {
		_ = server.Close()
		return nil, bootError(err)
	}
	if i.init, err = tracee.NewInit(server, i.ended); err != nil {
		_ = server.Close()
		return nil, bootError(err)
	}
	go i.watch()
	return i, nil
}

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
	pid, _ := b.Fork(tracee.CloneArgs{
		Flags: namespaces | unix.CLONE_INTO_CGROUP, ExitSignal: uint64(unix.SIGCHLD), Cgroup: uint64(n),
	}, tracee.EndServe, func(c *tracee.Batch) {
		c.Call(unix.SYS_DUP3, n+1, tracee.ControlFD, unix.O_CLOEXEC)
		c.Call(unix.SYS_CLOSE_RANGE, n, n+1, 0)
	})
	_, err = doAndTidy(i.seed.server, b, 0, sent...)
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
