package process

import (
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// grow makes the other processes of a lineage, each cloned by its parent with
// all of the zygote's memory that it and its own children need.
func (r *restore) grow(l *Lineage) error {
	kids := map[int][]*image.Process{}
	for _, p := range l.Processes {
		if c := l.clonerOf(p); c != 0 {
			kids[c] = append(kids[c], p)
		}
	}
	for _, p := range l.Processes {
		n := r.procs[p.PID]
		if n == nil {
			continue
		}
		if err := r.lead(n); err != nil {
			return fmt.Errorf("process %d (%s): %w", p.PID, p.Comm, err)
		}
		if err := r.clone(n, kids); err != nil {
			return fmt.Errorf("clone the children of process %d (%s): %w", p.PID, p.Comm, err)
		}
	}
	return nil
}

// lead makes a process the leader of its session if it is, and gives the session
// the terminal, before it has children that inherit both.
func (r *restore) lead(n *newProcess) error {
	p := n.image
	b := tracee.NewBatch()
	if p.Session == p.PID {
		b.Call(unix.SYS_SETSID)
	}
	var send []int
	if p.Session == p.PID && p.Terminal >= 0 {
		send = append(send, r.files.Slave(p.Terminal))
		fd := b.ReceiveFD(n.control)
		b.Call(unix.SYS_IOCTL, fd, unix.TIOCSCTTY, 0)
		b.Call(unix.SYS_CLOSE, fd)
	}
	if b.Len() == 0 {
		return nil
	}
	return r.runWith(n, b, send)
}

// runWith runs a batch that receives descriptors, after sending them.
func (r *restore) runWith(n *newProcess, b *tracee.Batch, fds []int) error {
	if len(fds) > 0 {
		if err := unix.Sendmsg(n.socket, []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL); err != nil {
			return fmt.Errorf("send descriptors: %w", err)
		}
	}
	if err := n.tracee.Run(b); err != nil {
		return err
	}
	return nil
}

// clone has a process clone its children. The largest comes first and its
// memory leaves the parent at once, so that the next is cloned without it.
func (r *restore) clone(n *newProcess, kids map[int][]*image.Process) error {
	mine := kids[n.image.PID]
	if len(mine) == 0 {
		return nil
	}
	z := r.spawned.target.Zygote(n.line.Key)
	size := func(p *image.Process) (s uint64) {
		for _, q := range subtree(p, kids) {
			s += z.Private(q)
		}
		return s
	}
	sort.SliceStable(mine, func(i, j int) bool { return size(mine[i]) > size(mine[j]) })
	// Each is cloned without the memory of its siblings: with it, the time to
	// make many would grow with the square of their number.
	for some := range slices.Chunk(mine, clonesAtOnce) {
		if len(mine) == 1 {
			break
		}
		b := tracee.NewBatch()
		for _, p := range some {
			for _, pid := range subtree(p, kids) {
				if n.held[pid] {
					z.Share(b, pid, false)
				}
			}
		}
		if err := n.tracee.Run(b); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(mine, clonesAtOnce) {
		if err := r.cloneSome(n, z, some, kids); err != nil {
			return err
		}
	}
	return nil
}

// clonesAtOnce is how many children one batch clones.
const clonesAtOnce = 64

func (r *restore) cloneSome(n *newProcess, z *memory.Zygote, mine []*image.Process, kids map[int][]*image.Process) error {
	b := tracee.NewBatch()
	made := make([]*newProcess, len(mine))
	for i, p := range mine {
		made[i] = &newProcess{image: p, line: n.line, socket: n.socket, control: tracee.ControlFD, held: map[int]bool{}}
		below := subtree(p, kids)
		for _, pid := range below {
			if n.held[pid] {
				if len(kids[n.image.PID]) > 1 {
					z.Share(b, pid, true)
				}
				made[i].held[pid] = true
			}
		}
		for _, pid := range n.above {
			made[i].held[pid] = n.held[pid]
		}
		made[i].above = append(slices.Clone(n.above), p.PID)
		a := tracee.CloneArgs{ExitSignal: exitSignal(p), SetTID: []int32{int32(p.PID)}}
		if p.Parent != n.image.PID && n.image.State != image.Zombie { // PID 1 has adopted it
			a.Flags, a.ExitSignal = unix.CLONE_PARENT, 0
		}
		b.Clone3(a)
		for _, pid := range below {
			if n.held[pid] {
				z.Leave(b, pid)
				n.held[pid] = false
			}
		}
	}
	born, err := r.clones(n, b, len(made))
	if err != nil {
		return err
	}
	for i, t := range born {
		made[i].tracee, made[i].threads = t, []*tracee.Tracee{t}
		r.procs[made[i].image.PID] = made[i]
	}
	return nil
}

func exitSignal(p *image.Process) uint64 {
	if p.ExitSignal < 0 || p.ExitSignal > lastSignal {
		return uint64(unix.SIGCHLD)
	}
	return uint64(p.ExitSignal)
}

// subtree lists a process and all that are cloned below it.
func subtree(p *image.Process, kids map[int][]*image.Process) []int {
	out := []int{p.PID}
	for _, k := range kids[p.PID] {
		out = append(out, subtree(k, kids)...)
	}
	return out
}

// joinGroups puts every process into its group, the leaders first. Until then
// all of a session are in the group that its leader, or the one that passed in
// its place, made: that one cannot be made again if it was left by all. Other
// groups whose leader is dead are led by a process that only passes.
func (r *restore) joinGroups() error {
	err := r.eachMade(func(n *newProcess) error {
		if p := n.image; p.Group != p.PID || p.Session == p.PID {
			return nil
		}
		b := tracee.NewBatch()
		b.Call(unix.SYS_SETPGID, 0, 0)
		return n.tracee.Run(b)
	})
	if err != nil {
		return err
	}
	passing := map[int]*tracee.Tracee{} // by group
	owner := map[int]*newProcess{}
	err = r.eachMade(func(n *newProcess) error {
		p := n.image
		if p.Group == p.PID || p.Group == p.Session { // where it was from the start
			return nil
		}
		if r.procs[p.Group] == nil && passing[p.Group] == nil {
			t, err := r.passingLeader(n, p.Group)
			if err != nil {
				return fmt.Errorf("make process group %d: %w", p.Group, err)
			}
			passing[p.Group], owner[p.Group] = t, n
		}
		b := tracee.NewBatch()
		b.Call(unix.SYS_SETPGID, 0, p.Group)
		return n.tracee.Run(b)
	})
	if err != nil {
		return err
	}
	for group, t := range passing {
		_ = unix.Kill(t.TID, unix.SIGKILL)
		reapTraced(t.TID)
		r.traced = slices.DeleteFunc(r.traced, func(tid int) bool { return tid == t.TID })
		b := tracee.NewBatch()
		b.Call(unix.SYS_WAIT4, group, nil, unix.WALL, nil)
		if err := owner[group].tracee.Run(b); err != nil {
			return fmt.Errorf("end the passing leader of process group %d: %w", group, err)
		}
	}
	return nil
}

func (r *restore) passingLeader(n *newProcess, group int) (*tracee.Tracee, error) {
	b := tracee.NewBatch()
	b.Clone3(tracee.CloneArgs{SetTID: []int32{int32(group)}})
	born, err := r.clones(n, b, 1)
	if err != nil {
		return nil, err
	}
	b = tracee.NewBatch()
	b.Call(unix.SYS_SETPGID, 0, 0)
	return born[0], born[0].Run(b)
}
