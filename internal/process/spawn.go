package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// allNamespaces are those of an incarnation but its pid namespace, which a
// process cannot change, and its time namespace, which PID 1 itself is not in.
const allNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Descriptors that the root of a lineage finds at first, and behind them its control socket and
// the namespace that the zygote comes back to.
const (
	fdInit = iota
	fdCgroup
	fdTime
	fdSocket
	fdOwn
)

// Spawned are the roots of a tree's lineages, one each: clones of their zygotes inside an
// incarnation, that wait to be taken up by a restore.
type Spawned struct {
	target SpawnTarget
	lines  []*Lineage
	roots  map[*Lineage]*root
	spare  int32 // a number that nothing in the tree has
}

// root is that of one lineage.
type root struct {
	process *image.Process
	socket  int // our end of its control socket, or -1
	err     error
	done    chan struct{} // closed when the others are set
}

// SpawnTarget is an incarnation that has a PID 1; it needs no root yet.
// Descriptors stay the caller's.
type SpawnTarget struct {
	// PIDFD refers to PID 1.
	PIDFD int
	// Time is the time namespace of PID 1's children, with its clocks set.
	Time int
	// Cgroup is the directory of the version 2 cgroup.
	Cgroup int
	// Zygote gives the zygote of a lineage.
	Zygote func(key int) *memory.Zygote
	// Realtime gives the zygotes real-time priority while they clone.
	Realtime bool
}

// Spawn begins to clone the roots of a tree's lineages, all beside each other
// and beside whatever else is made of the incarnation.
//
// A zygote enters the pid namespace for its children, and clones a process
// that only passes: it shares the zygote's memory, clones the root, ends and is
// reaped, so that the root is a child of PID 1. Where the session's leader is
// dead, it takes the leader's number and makes the session.
func Spawn(tree *image.Tree, target SpawnTarget) *Spawned {
	s := &Spawned{target: target, lines: Lineages(tree), roots: map[*Lineage]*root{}}
	passing := 0
	for _, l := range s.lines {
		passing += len(l.passing)
	}
	spare := spareNumbers(tree, passing+len(s.lines)+1)[passing:] // each its own: they are beside each other
	s.spare = spare[len(s.lines)]
	for i, l := range s.lines {
		r := &root{process: l.root(), socket: -1, done: make(chan struct{})}
		s.roots[l] = r
		passing := spare[i]
		if l.Orphans {
			passing = int32(l.Key)
		}
		go func() {
			defer close(r.done)
			r.err = s.spawn(l, r, passing)
		}()
	}
	return s
}

// Close waits until nothing is cloned any more and gives up what no restore has
// taken up: its processes end with the incarnation.
func (s *Spawned) Close() {
	for _, r := range s.roots {
		<-r.done
		if r.socket >= 0 {
			_ = unix.Close(r.socket)
			r.socket = -1
		}
	}
}

func (s *Spawned) spawn(l *Lineage, r *root, passing int32) error {
	z := s.target.Zygote(l.Key)
	if z == nil || r.process == nil {
		return fault.New(fault.Internal, "no zygote, or no process, for session %d", l.Key)
	}
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(sp[1])
	r.socket = sp[0]
	if err := unix.SetsockoptInt(sp[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return fmt.Errorf("SO_PASSCRED: %w", err)
	}
	if s.target.Realtime && sched.Realtime(z.Server().PID(), true) == 0 {
		defer sched.Set(z.Server().PID(), sched.Attr{Policy: sched.Other})
	}
	return z.Server().Do(spawnBatch(l, r.process, passing), s.target.PIDFD, s.target.Cgroup, s.target.Time, sp[1])
}

// meet takes the root of a lineage into the incarnation.
func (r *restore) meet(l *Lineage) error {
	top := r.spawned.roots[l]
	<-top.done
	if top.err != nil {
		return top.err
	}
	socket := top.socket
	top.socket = -1
	if err := r.meetRoot(l, top.process, socket); err != nil {
		_ = unix.Close(socket)
		return err
	}
	return nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func spawnBatch(l *Lineage, root *image.Process, passing int32) *tracee.Batch {
	b := tracee.NewBatch()
	b.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0) // what a batch that failed has left
	b.ReceiveFDs(fdOwn)
	own := b.Call(unix.SYS_OPEN, "/proc/self/ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b.Call(unix.SYS_SETNS, fdInit, unix.CLONE_NEWPID)
	pass, _ := b.Fork(tracee.CloneArgs{
		Flags:  unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_INTO_CGROUP,
		Cgroup: fdCgroup, SetTID: []int32{passing},
	}, tracee.EndExit, func(i *tracee.Batch) {
		i.Call(unix.SYS_PRCTL, unix.PR_SET_TIMERSLACK, initialSlack, 0, 0, 0) // a zygote with real-time priority has none
		if l.Orphans {
			i.Call(unix.SYS_SETSID)
		}
		i.Fork(tracee.CloneArgs{ExitSignal: uint64(unix.SIGCHLD), SetTID: []int32{int32(root.PID)}}, tracee.EndPark, func(c *tracee.Batch) {
			c.Call(unix.SYS_DUP3, fdSocket, tracee.ControlFD, unix.O_CLOEXEC)
			c.Call(unix.SYS_CLOSE_RANGE, fdSocket, tracee.ControlFD-1, 0)
			c.Call(unix.SYS_WRITE, tracee.ControlFD, c.PutWords(1), 8)
		})
	})
	b.Call(unix.SYS_WAIT4, pass, nil, unix.WALL, nil)
	b.Call(unix.SYS_SETNS, own, unix.CLONE_NEWPID) // hold no dead namespace
	b.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0)
	return b
}

// meetRoot seizes a new root and takes it into the incarnation.
func (r *restore) meetRoot(l *Lineage, p *image.Process, socket int) error {
	host, err := firstWord(socket)
	if err != nil {
		return fmt.Errorf("first word of process %d: %w", p.PID, err)
	}
	r.traced = append(r.traced, host)
	t, err := tracee.Seize(host, tracee.OptionsRestore)
	if err != nil {
		return err
	}
	r.live.pin.hold(host) // threads and children inherit it; each gets its own mask in the end
	n := &newProcess{image: p, line: l, tracee: t, threads: []*tracee.Tracee{t}, socket: socket, control: tracee.ControlFD, held: map[int]bool{}}
	for _, q := range l.Processes {
		n.held[q.PID] = q.State != image.Zombie
	}
	r.procs[p.PID] = n
	if r.target.Enter != nil {
		if err := r.target.Enter(host); err != nil {
			return err
		}
	}
	r.raise(n)
	defer r.lower(n)
	b := tracee.NewBatch()
	b.Call(unix.SYS_SETNS, fdTime, unix.CLONE_NEWTIME)
	b.Call(unix.SYS_SETNS, fdInit, allNamespaces)
	b.Call(unix.SYS_CLOSE_RANGE, 0, fdSocket-1, 0)
	b.Call(unix.SYS_SETGROUPS, 0, nil)
	b.Call(unix.SYS_SETRESGID, 0, 0, 0)
	b.Call(unix.SYS_SETRESUID, 0, 0, 0)
	confine.Keyring(b)
	r.target.Walls.Enclose(b)
	if err := t.Run(b); err != nil {
		return fmt.Errorf("take process %d into the incarnation: %w", p.PID, err)
	}
	return nil
}

// firstWord waits for a new process's first message and returns its number on
// the host, which the kernel adds to it.
func firstWord(socket int) (int, error) {
	var m [8]byte
	var oob [64]byte
	for {
		_, n, _, _, err := unix.Recvmsg(socket, m[:], oob[:], unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil {
			return 0, err
		}
		for i := range msgs {
			if c, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
				return int(c.Pid), nil
			}
		}
		return 0, errors.New("no credentials")
	}
}
