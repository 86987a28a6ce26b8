package process

import (
	"errors"
	"fmt"
	"slices"

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

// Descriptors that the roots of a lineage find at first, and behind them those of
// the process that passes: the socket that brings the roots' own, the namespace to
// come back to, and the roots' sockets.
const (
	fdInit = iota
	fdCgroup
	fdTime
	fdFeeder
	fdOwn
	fdSockets
)

// atOnce is how many roots get their sockets in one message; descriptors of a stub
// are below [tracee.ControlFD].
const atOnce = 64

// MaxRoots is how many processes one lineage may have that nobody in it clones:
// what the batch of the passing process has room for. Only a session without a
// leader, all of whose processes PID 1 has adopted, has more than one.
const MaxRoots = 450

// Spawned are the roots of a tree's lineages: clones of their zygotes inside an
// incarnation, that wait to be taken up by a restore.
type Spawned struct {
	target SpawnTarget
	lines  []*Lineage
	roots  map[*Lineage]*lineRoots
	spare  int32 // a number that nothing in the tree has
}

// lineRoots are those of one lineage.
type lineRoots struct {
	processes []*image.Process
	sockets   []int // our ends of their control sockets
	err       error
	done      chan struct{} // closed when the others are set
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
// that only passes: it shares the zygote's memory, clones the roots, ends and is
// reaped, so that they are children of PID 1. Where their session's leader is
// dead, it takes the leader's number and makes the session.
func Spawn(tree *image.Tree, target SpawnTarget) *Spawned {
	s := &Spawned{target: target, lines: Lineages(tree), roots: map[*Lineage]*lineRoots{}}
	passing := 0
	for _, l := range s.lines {
		passing += len(l.passing)
	}
	spare := spareNumbers(tree, passing+len(s.lines)+1)[passing:] // each its own: they are beside each other
	s.spare = spare[len(s.lines)]
	for i, l := range s.lines {
		r := &lineRoots{done: make(chan struct{})}
		for _, p := range l.Processes {
			if l.clonerOf(p) == 0 {
				r.processes = append(r.processes, p)
			}
		}
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
		closeFDs(r.sockets)
		r.sockets = nil
	}
}

func (s *Spawned) spawn(l *Lineage, r *lineRoots, passing int32) error {
	z := s.target.Zygote(l.Key)
	if z == nil {
		return fault.New(fault.Internal, "no zygote for session %d", l.Key)
	}
	var theirs []int
	defer func() { closeFDs(theirs) }()
	for range r.processes {
		sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			r.sockets, theirs = append(r.sockets, sp[0]), append(theirs, sp[1])
			err = unix.SetsockoptInt(sp[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}
		if err != nil {
			return fmt.Errorf("socketpair: %w", err)
		}
	}
	feeder, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer closeFDs(feeder[:])
	for group := range slices.Chunk(theirs, atOnce) {
		if err := unix.Sendmsg(feeder[0], []byte{0}, unix.UnixRights(group...), nil, unix.MSG_NOSIGNAL); err != nil {
			return fmt.Errorf("send the sockets of session %d: %w", l.Key, err)
		}
	}
	if s.target.Realtime && sched.Realtime(z.Server().PID(), true) == 0 {
		defer sched.Set(z.Server().PID(), sched.Attr{Policy: sched.Other})
	}
	return z.Server().Do(spawnBatch(l, r.processes, passing), s.target.PIDFD, s.target.Cgroup, s.target.Time, feeder[1])
}

// meet takes the roots of a lineage into the incarnation.
func (r *restore) meet(l *Lineage) error {
	roots := r.spawned.roots[l]
	<-roots.done
	if roots.err != nil {
		return roots.err
	}
	for _, p := range roots.processes {
		socket := roots.sockets[0]
		roots.sockets = roots.sockets[1:]
		if err := r.meetRoot(l, p, socket); err != nil {
			_ = unix.Close(socket)
			return err
		}
	}
	return nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func spawnBatch(l *Lineage, roots []*image.Process, passing int32) *tracee.Batch {
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
		for group := range slices.Chunk(roots, atOnce) {
			i.ReceiveFDsFrom(fdFeeder, len(group))
			for k, p := range group {
				i.Fork(tracee.CloneArgs{ExitSignal: uint64(unix.SIGCHLD), SetTID: []int32{int32(p.PID)}}, tracee.EndPark, func(c *tracee.Batch) {
					c.Call(unix.SYS_DUP3, fdSockets+k, tracee.ControlFD, unix.O_CLOEXEC)
					c.Call(unix.SYS_CLOSE_RANGE, fdFeeder, tracee.ControlFD-1, 0)
					c.Call(unix.SYS_WRITE, tracee.ControlFD, c.PutWords(1), 8)
				})
			}
			i.Call(unix.SYS_CLOSE_RANGE, fdSockets, tracee.ControlFD-1, 0)
		}
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
	b.Call(unix.SYS_CLOSE_RANGE, 0, fdFeeder-1, 0)
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
