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
	passing := map[int][]*passing{} // by parent
	for _, q := range l.passing {
		kids[q.Parent] = append(kids[q.Parent], q.Process)
		passing[q.Parent] = append(passing[q.Parent], q)
	}
	var one func(p *image.Process) error
	one = func(p *image.Process) error {
		n := r.procs[p.PID]
		if n == nil {
			return nil
		}
		if err := r.clone(n, kids, l.early); err != nil {
			return fmt.Errorf("process %d (%s) and its children: %w", p.PID, p.Comm, err)
		}
		for _, q := range passing[p.PID] {
			if err := one(q.Process); err != nil {
				return err
			}
			if err := r.pass(q); err != nil {
				return fmt.Errorf("end the passing process %d of session %d: %w", q.PID, q.Session, err)
			}
		}
		return nil
	}
	for _, p := range l.Processes {
		if err := one(p); err != nil {
			return err
		}
	}
	return nil
}

// pass ends a process that passes. Its parent reaps it, and what it has cloned gets
// the parent that it shall have: while nothing is a subreaper that is PID 1.
func (r *restore) pass(q *passing) error {
	n, reaper := r.procs[q.PID], r.procs[q.Reaper]
	delete(r.procs, q.PID)
	adopt := func(on int) error {
		if reaper == nil {
			return nil
		}
		b := tracee.NewBatch()
		b.Call(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, on, 0, 0, 0)
		return reaper.tracee.Run(b)
	}
	if err := adopt(1); err != nil {
		return err
	}
	_ = unix.Kill(n.tracee.TID, unix.SIGKILL)
	reapTraced(n.tracee.TID)
	r.traced = slices.DeleteFunc(r.traced, func(tid int) bool { return tid == n.tracee.TID })
	if err := adopt(0); err != nil {
		return err
	}
	b := tracee.NewBatch()
	b.Call(unix.SYS_WAIT4, q.PID, nil, unix.WALL, nil)
	if q.ExitSignal > 0 {
		b.Try(unix.SYS_RT_SIGTIMEDWAIT, b.PutWords(1<<(q.ExitSignal-1)), nil, b.PutWords(0, 0), 8)
	}
	return r.procs[q.Parent].tracee.Run(b)
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
		if err := n.send(fds...); err != nil {
			return err
		}
	}
	return n.tracee.Run(b)
}

// clone has a process clone its children. Each is cloned with the memory that it
// and those below it need alone: with all of it, the time to make many would
// grow with the square of their number. What nobody needs any more leaves the
// parent at once. They come in their order, which wait(2) goes by.
//
// The process leads its session before it clones any but the early ones.
func (r *restore) clone(n *newProcess, kids map[int][]*image.Process, early map[int]bool) error {
	mine := kids[n.image.PID]
	if len(mine) == 0 {
		return r.lead(n)
	}
	z := r.spawned.target.Zygote(n.line.Key)
	sort.SliceStable(mine, func(i, j int) bool { return early[mine[i].PID] && !early[mine[j].PID] })
	c := &cloning{restore: r, n: n, zygote: z, batch: tracee.NewBatch(), users: map[int]int{}}
	needs := make([][]int, len(mine))
	for i, p := range mine {
		needs[i] = c.needs(subtree(p, kids))
		for _, pid := range needs[i] {
			c.users[pid]++
		}
	}
	for _, pid := range c.needs([]int{n.image.PID}) {
		c.users[pid]++
	}
	if err := c.shareAll(false); err != nil {
		return err
	}
	leads := false
	for i := 0; i < len(mine); {
		p := mine[i]
		if !leads && !early[p.PID] {
			leads = true
			if err := c.run(); err != nil {
				return err
			}
			if err := r.lead(n); err != nil {
				return err
			}
		}
		k := c.together(mine[i:], len(mine), early)
		if err := c.children(mine[i:i+k], needs[i:i+k]); err != nil {
			return err
		}
		i += k
	}
	if !leads {
		if err := c.run(); err != nil {
			return err
		}
		if err := r.lead(n); err != nil {
			return err
		}
	}
	if err := c.shareAll(true); err != nil {
		return err
	}
	return c.run()
}

// cloning is how one process clones its children.
type cloning struct {
	*restore
	n      *newProcess
	zygote *memory.Zygote
	batch  *tracee.Batch
	made   []*newProcess // whose clones are queued
	users  map[int]int   // how many still need a process's memory: this one, children
}

// needs are the processes whose memory some need that are held here: their own
// and what they share.
func (c *cloning) needs(pids []int) (out []int) {
	seen := map[int]bool{}
	add := func(pid int) {
		if c.n.held[pid] && !seen[pid] {
			seen[pid] = true
			out = append(out, pid)
		}
	}
	for _, pid := range pids {
		add(pid)
		for _, l := range c.zygote.Lenders(pid) {
			add(l)
		}
	}
	return out
}

// shareAll says of all memory that is held whether children get it.
func (c *cloning) shareAll(share bool) error {
	for pid, held := range c.n.held {
		if !held {
			continue
		}
		if err := c.room(); err != nil {
			return err
		}
		c.zygote.Share(c.batch, pid, share)
	}
	return nil
}

// child queues the clone of one child.
func (c *cloning) child(p *image.Process, needs []int) error {
	m := &newProcess{image: p, line: c.n.line, socket: c.n.socket, control: tracee.ControlFD, held: map[int]bool{}}
	for _, pid := range needs {
		if err := c.room(); err != nil {
			return err
		}
		c.zygote.Share(c.batch, pid, true)
		m.held[pid] = true
	}
	a := tracee.CloneArgs{ExitSignal: exitSignal(p), SetTID: []int32{int32(p.PID)}}
	if p.Parent != c.n.image.PID && max(p.Parent, 1) == max(c.n.image.Parent, 1) { // PID 1 or a subreaper has adopted it
		a.Flags, a.ExitSignal = unix.CLONE_PARENT, 0
	}
	c.batch.Clone3(a)
	c.made = append(c.made, m)
	for _, pid := range needs {
		if err := c.room(); err != nil {
			return err
		}
		if c.users[pid]--; c.users[pid] > 0 {
			c.zygote.Share(c.batch, pid, false)
			continue
		}
		c.zygote.Leave(c.batch, pid)
		c.n.held[pid] = false
	}
	return nil
}

// callsForMemory is more than the parts that the memory of a process comes in.
const callsForMemory = 64

func (c *cloning) room() error {
	if c.batch.Full(callsForMemory, 256) || len(c.made) == clonesAtOnce {
		return c.run()
	}
	return nil
}

// clonesAtOnce is how many children one batch clones.
const clonesAtOnce = 64

func (c *cloning) run() error {
	if c.batch.Len() == 0 {
		return nil
	}
	born, err := c.clones(c.n, c.batch, len(c.made))
	if err != nil {
		return err
	}
	for i, t := range born {
		m := c.made[i]
		m.tracee, m.threads = t, []*tracee.Tracee{t}
		c.procs[m.image.PID] = m
	}
	c.batch, c.made = tracee.NewBatch(), nil
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
