package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// allNamespaces are those of an incarnation but its pid namespace, which a
// process cannot change, and its time namespace, which PID 1 itself is not in.
const allNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Descriptors that the roots of a lineage find at first.
const (
	fdInit = iota
	fdCgroup
	fdTime
	fdSockets
)

// spawn has the zygote clone the roots of a lineage into the incarnation.
//
// The zygote enters the pid namespace for its children, and clones a process
// that only passes: it shares the zygote's memory, clones the roots, ends and is
// reaped, so that they are children of PID 1. Where their session's leader is
// dead, it takes the leader's number and makes the session.
func (r *restore) spawn(l *Lineage) error {
	var roots []*image.Process
	for _, p := range l.Processes {
		if l.clonerOf(p) == 0 {
			roots = append(roots, p)
		}
	}
	z := r.target.Zygote(l.Key)
	if z == nil {
		return fault.New(fault.Internal, "no zygote for session %d", l.Key)
	}
	var ours, theirs []int
	defer func() { closeFDs(theirs) }()
	for range roots {
		sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			ours, theirs = append(ours, sp[0]), append(theirs, sp[1])
			err = unix.SetsockoptInt(sp[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}
		if err != nil {
			closeFDs(ours)
			return fmt.Errorf("socketpair: %w", err)
		}
	}
	err := z.Server().Do(r.spawnBatch(l, roots), append([]int{r.target.PIDFD, r.target.Cgroup, r.target.Time}, theirs...)...)
	if err != nil {
		closeFDs(ours)
		return err
	}
	for i, p := range roots {
		if err := r.meetRoot(l, p, ours[i]); err != nil {
			closeFDs(ours[i:])
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

func (r *restore) spawnBatch(l *Lineage, roots []*image.Process) *tracee.Batch {
	passing := r.spare
	if l.Orphans {
		passing = int32(l.Key)
	}
	b := tracee.NewBatch()
	b.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0) // what a batch that failed has left
	b.ReceiveFDs(fdSockets + len(roots))
	// The descriptor of the namespace to come back to is above those.
	own := b.Call(unix.SYS_OPEN, "/proc/self/ns/pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b.Call(unix.SYS_SETNS, fdInit, unix.CLONE_NEWPID)
	pass, _ := b.Fork(tracee.CloneArgs{
		Flags:  unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_INTO_CGROUP,
		Cgroup: fdCgroup, SetTID: []int32{passing},
	}, tracee.EndExit, func(i *tracee.Batch) {
		if l.Orphans {
			i.Call(unix.SYS_SETSID)
		}
		for k, p := range roots {
			i.Fork(tracee.CloneArgs{ExitSignal: uint64(unix.SIGCHLD), SetTID: []int32{int32(p.PID)}}, tracee.EndPark, func(c *tracee.Batch) {
				c.Call(unix.SYS_DUP3, fdSockets+k, tracee.ControlFD, unix.O_CLOEXEC)
				c.Call(unix.SYS_CLOSE_RANGE, fdSockets, tracee.ControlFD-1, 0)
				c.Call(unix.SYS_WRITE, tracee.ControlFD, c.PutWords(1), 8)
			})
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
	n := &newProcess{image: p, line: l, tracee: t, threads: []*tracee.Tracee{t}, socket: socket, control: tracee.ControlFD, held: map[int]bool{}, above: []int{p.PID}, uffd: -1}
	for _, q := range l.Processes {
		n.held[q.PID] = q.State != image.Zombie
	}
	r.procs[p.PID] = n
	if r.target.Enter != nil {
		if err := r.target.Enter(host); err != nil {
			return err
		}
	}
	b := tracee.NewBatch()
	b.Call(unix.SYS_SETNS, fdTime, unix.CLONE_NEWTIME)
	b.Call(unix.SYS_SETNS, fdInit, allNamespaces)
	b.Call(unix.SYS_CLOSE_RANGE, 0, fdSockets-1, 0)
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
