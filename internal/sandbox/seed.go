package sandbox

import (
	"context"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/linux/statdev"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Seed is what every PID 1 of a family is cloned from. It is safe for use by
// many goroutines.
type Seed struct {
	server  *tracee.Server
	idmap   confine.IDMap
	devices *statdev.Table
	owners  atomic.Uint32 // given to incarnations so far
}

// NewSeed starts a seed whose incarnations have the given ids on the host, and
// show their mounts' numbers by a table of these ids, which may be nil. It
// ends when it is closed, or this process ends.
func NewSeed(program *tracee.Program, idmap confine.IDMap, devices *statdev.Table) (*Seed, error) {
	server, err := program.Spawn()
	if err != nil {
		return nil, fault.New(fault.Internal, "start the seed: %w", err)
	}
	s := &Seed{server: server, idmap: idmap, devices: devices}
	if err := s.prepare(); err != nil {
		server.Kill()
		return nil, fault.New(fault.Internal, "prepare the seed: %w", err)
	}
	return s, nil
}

// Server is the seed's, for batches of the engine's.
func (s *Seed) Server() *tracee.Server { return s.server }

// IDMap are the ids that incarnations have on the host.
func (s *Seed) IDMap() confine.IDMap { return s.idmap }

// Close ends the seed. Its incarnations live on, but nobody reaps their PID 1
// except this process's own subreaper: close them first.
func (s *Seed) Close() error {
	s.server.Kill()
	return nil
}

func (s *Seed) prepare() error {
	if err := confine.Prepare(s.server.PID()); err != nil {
		return err
	}
	b := tracee.NewBatch()
	queueOrdinary(b)
	queueSeedMounts(b)
	return s.server.Do(b)
}

const lastSignal = 64

// queueOrdinary takes off what the seed inherited from the supervisor and its
// incarnations must not: ignored signals, session, priority, CPU mask.
func queueOrdinary(b *tracee.Batch) {
	for sig := 1; sig <= lastSignal; sig++ {
		if sig != int(unix.SIGKILL) && sig != int(unix.SIGSTOP) {
			b.Call(unix.SYS_RT_SIGACTION, sig, b.PutWords(0, 0, 0, 0), 0, 8) // SIG_DFL
		}
	}
	b.Call(unix.SYS_SETSID)
	b.Call(unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_NORMAL, b.PutWords(0))
	b.Call(unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, 0)
	all := make([]uint64, 128) // 8192 CPUs
	for i := range all {
		all[i] = ^uint64(0)
	}
	b.Call(unix.SYS_SCHED_SETAFFINITY, 0, 8*len(all), b.PutWords(all...))
	b.Call(unix.SYS_PRCTL, unix.PR_SET_NAME, "seed")
}

// stageDir is where an incarnation's own mounts stand until it has a root, each
// under the name that it will have there.
const stageDir = "/stage"

var staged = []string{"proc", "sys", "dev"}

// queueSeedMounts leaves three mounts in sight: an incarnation's clone copies
// few, and the kernel lets it mount proc and sysfs of its own because whole
// ones are there (mount_too_revealing in the kernel's fs/namespace.c).
func queueSeedMounts(b *tracee.Batch) {
	b.Call(unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	b.Call(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_PRIVATE, 0)
	b.Call(unix.SYS_MOUNT, "tmpfs", "/proc", "tmpfs", 0, "size=64k,mode=755") // any directory will do
	b.Call(unix.SYS_CHDIR, "/proc")
	for _, d := range []string{"proc", "sys", "root", stageDir[1:]} {
		b.Call(unix.SYS_MKDIR, d, 0o755)
	}
	for _, d := range staged {
		b.Call(unix.SYS_MKDIR, stageDir[1:]+"/"+d, 0o755)
	}
	b.Call(unix.SYS_MOUNT, "proc", "proc", "proc", 0, 0)
	b.Call(unix.SYS_MOUNT, "sysfs", "sys", "sysfs", 0, 0)
	b.Call(unix.SYS_PIVOT_ROOT, ".", ".")
	b.Call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	b.Call(unix.SYS_CHDIR, "/")
}

// NewUserns makes a user namespace that only carries an id map, for idmapped
// mounts (mount_setattr(2)). The caller closes it.
func (s *Seed) NewUserns(m confine.IDMap) (fd int, err error) {
	b := tracee.NewBatch()
	pid, _ := b.Fork(tracee.CloneArgs{Flags: unix.CLONE_NEWUSER, ExitSignal: uint64(unix.SIGCHLD)}, tracee.EndPark, func(*tracee.Batch) {})
	if err := s.server.Do(b); err != nil {
		return -1, fault.New(fault.Internal, "make a user namespace: %w", err)
	}
	p := b.Value(pid)
	pidfd, err := unix.PidfdOpen(p, 0)
	if err != nil {
		return -1, fault.New(fault.Internal, "make a user namespace: %w", err)
	}
	defer unix.Close(pidfd)
	defer s.end(p, pidfd)
	if err := writeIDMap(m, p); err != nil {
		return -1, fault.New(fault.Internal, "make a user namespace: %w", err)
	}
	fd, err = namespace.Open(p, namespace.User)
	if err != nil {
		return -1, fault.New(fault.Internal, "make a user namespace: %w", err)
	}
	return fd, nil
}

// end kills a child of the seed's that does nothing, and waits until it is gone.
func (s *Seed) end(pid, pidfd int) {
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	if waitEnd(context.Background(), pidfd) == nil {
		s.reap(pid)
	}
}

// reap takes the status of a PID 1 that has ended, if the seed has not done so
// by itself already. NOHANG: the number may be another's by now.
func (s *Seed) reap(pid int) {
	b := tracee.NewBatch()
	b.Try(unix.SYS_WAIT4, pid, 0, unix.WNOHANG|unix.WALL, 0)
	_ = s.server.Do(b) // a seed that has ended has left the work to its reaper
}

func writeIDMap(m confine.IDMap, pid int) error {
	return namespace.WriteIDMaps(pid, m.String(), m.String())
}
