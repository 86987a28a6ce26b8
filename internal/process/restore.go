package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// The steps of a restore that can be made to fail, each after it was done.
var (
	failOpened    = failpoint.New("process.restore.opened")
	failSpawned   = failpoint.New("process.restore.spawned")
	failGrown     = failpoint.New("process.restore.grown")
	failGroups    = failpoint.New("process.restore.groups")
	failMemory    = failpoint.New("process.restore.memory")
	failSockets   = failpoint.New("process.restore.sockets")
	failInstalled = failpoint.New("process.restore.installed")
	failCompleted = failpoint.New("process.restore.completed")
	failZombies   = failpoint.New("process.restore.zombies")
	failStops     = failpoint.New("process.restore.stops")
	failThreads   = failpoint.New("process.restore.threads")
	failSettled   = failpoint.New("process.restore.settled")
	failFollowed  = failpoint.New("process.restore.followed")
	failLastPID   = failpoint.New("process.restore.lastpid")
)

// restore is one restore under way.
type restore struct {
	target  Target
	spawned *Spawned
	tree    *image.Tree
	live    *Live
	files   *opened
	shared  map[sharedKey]int // descriptors of the new shared objects
	procs   map[int]*newProcess
	traced  []int // everything that was ever traced here, in order
	lines   []*Lineage
	stages  RestoreStages
	begun   time.Time
	pidfds  []int // to be closed in the end
}

type sharedKey struct{ dev, ino uint64 }

// newProcess is a process that is being restored.
type newProcess struct {
	image   *image.Process
	line    *Lineage
	tracee  *tracee.Tracee
	threads []*tracee.Tracee // the leader first
	socket  int              // our end of its control socket, shared along a lineage
	control int              // the number of its own end
	held    map[int]bool     // whose memory of the zygote is still mapped in it
	tracker *memory.Tracker  // of its memory, until the Live has it
	// protected waits for the outcome of the tracker's Protect, which runs while it
	// is not nil.
	protected func() error
	syscall   uint64 // address of a syscall instruction
	raised    bool   // its threads have real-time priority
}

// Restore makes a tree of processes anew. They stand when it returns, followed
// by the Live that it returns too: [Live.Resume] releases them. On an error
// nothing of them is left but what the incarnation's end takes with it.
//
// It must be called on a locked OS thread, which all later calls of the Live
// must come from. What was spawned is of the same tree, and the caller's to close.
func Restore(tree *image.Tree, spawned *Spawned, target Target) (*Live, RestoreStages, error) {
	live, err := NewLive(target.Live)
	if err != nil {
		return nil, nil, err
	}
	r := &restore{
		target: target, spawned: spawned, tree: tree, live: live, procs: map[int]*newProcess{},
		shared: map[sharedKey]int{}, lines: spawned.lines, begun: time.Now(),
	}
	live.round++
	live.stopped = true
	if target.Live.Realtime {
		live.pin.take()
	}
	err = r.run()
	live.pin.give()
	r.closeAll()
	if err != nil {
		r.kill()
		return nil, r.stages, errors.Join(fault.New(fault.KindOf(err), "restore processes: %w", err), live.Close())
	}
	return live, r.stages, nil
}

func (r *restore) run() error {
	last := time.Now()
	for _, p := range r.tree.Processes {
		all := []*image.Credentials{p.EndedAs}
		for _, t := range p.Threads {
			all = append(all, &t.Creds)
		}
		for _, c := range all {
			if c == nil {
				continue
			}
			if err := credentials(c).Check(r.target.Walls); err != nil {
				return fmt.Errorf("process %d: %w", p.PID, err)
			}
		}
	}
	var err error
	r.files, err = descriptor.Open(r.tree.Files, r.tree.Terminals, descriptor.Target{
		Root: r.target.Root, Session: r.target.Session, Clocks: clocksOf(&r.target.Live), Exists: r.exists, Ended: r.ended, Queues: newMessageQueues(r.target.Init, r.tree.Files),
	})
	if err != nil {
		return err
	}
	for i, t := range r.tree.Terminals {
		if t.SessionID == "" {
			continue
		}
		if err := r.target.Master(t.SessionID, r.files.TakeMaster(i)); err != nil {
			return err
		}
	}
	if err := r.makeShared(); err != nil {
		return err
	}
	if err := r.makeSystemV(); err != nil {
		return err
	}
	for _, step := range []struct {
		fail  *failpoint.Point
		stage string // that ends with it; "": goes on
		run   func() error
	}{
		{failOpened, "descriptors", func() error { return nil }},
		{failSpawned, "clone", func() error { return eachLine(r.lines, r.meet) }},
		{failGrown, "tree", func() error { return eachLine(r.lines, r.grow) }},
		{nil, "", r.raiseAll},
		{failGroups, "", r.joinGroups},
		{failMemory, "memory", r.fillAll},
		{nil, "", r.ownPipes},
		{failSockets, "sockets", r.makeSockets},
		{failInstalled, "", func() error { return r.each(r.install) }},
		{failCompleted, "install", r.completeAll},
		{failZombies, "", r.zombies},
		{failStops, "", r.stops},
		{failThreads, "", func() error { return r.each(r.makeThreads) }},
		{nil, "", r.openFilesOfThreads},
		{failSettled, "threads", func() error { return r.each(r.settle) }},
		{failFollowed, "tracking", func() error { return r.each(r.follow) }},
		{failLastPID, "", r.setLastPID},
	} {
		if err := step.run(); err != nil {
			return err
		}
		if step.fail != nil {
			if err := step.fail.Hit(); err != nil {
				return err
			}
		}
		if step.stage != "" {
			r.stages.add(step.stage, &last)
		}
	}
	return nil
}

func eachLine(lines []*Lineage, f func(*Lineage) error) error {
	for _, l := range lines {
		if err := f(l); err != nil {
			return err
		}
	}
	return nil
}

// each calls f for all processes but zombies, cloners first.
func (r *restore) each(f func(*newProcess) error) error {
	return r.eachMade(func(n *newProcess) error {
		if n.image.State == image.Zombie {
			return nil
		}
		return f(n)
	})
}

// eachMade is each with those that are to be zombies.
func (r *restore) eachMade(f func(*newProcess) error) error {
	for _, l := range r.lines {
		for _, p := range l.Processes {
			n := r.procs[p.PID]
			if n == nil {
				continue
			}
			if err := f(n); err != nil {
				return fmt.Errorf("process %d (%s): %w", p.PID, p.Comm, err)
			}
		}
	}
	return nil
}

// kill ends what was made. Threads that we trace hold up the end of their
// namespace until we have reaped them, and leaders until their threads are.
func (r *restore) kill() {
	for _, tid := range r.traced {
		_ = unix.Kill(tid, unix.SIGKILL)
	}
	for i := len(r.traced) - 1; i >= 0; i-- {
		reapTraced(r.traced[i])
	}
	for tid := range r.live.threads {
		r.live.threads[tid].tracee = nil
	}
}

// clones runs a batch in a process of the tree and returns what it cloned.
func (r *restore) clones(n *newProcess, b *tracee.Batch, want int) ([]*tracee.Tracee, error) {
	err := n.tracee.Run(b)
	born, e := n.tracee.Born()
	r.traced = append(r.traced, n.tracee.Cloned()...)
	switch {
	case err != nil:
		return nil, err
	case e != nil:
		return nil, e
	case len(born) != want:
		return nil, fmt.Errorf("%d were born, not %d", len(born), want)
	}
	return born, nil
}

func reapTraced(tid int) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(tid, &ws, unix.WALL, nil)
		if err == unix.EINTR || err == nil && ws.Stopped() {
			if err == nil {
				_ = unix.PtraceCont(tid, 0)
			}
			continue
		}
		return
	}
}

func (r *restore) closeAll() {
	closeFDs(r.pidfds)
	if r.files != nil {
		_ = r.files.Close()
	}
	for _, fd := range r.shared {
		_ = unix.Close(fd)
	}
	closed := map[int]bool{}
	for _, n := range r.procs {
		_ = n.tracked() // what became of it matters no more
		if n.tracker != nil {
			n.tracker.Close()
		}
		if !closed[n.socket] {
			closed[n.socket] = true
			_ = unix.Close(n.socket)
		}
	}
}

// spareNumbers finds numbers for processes that only pass, which nothing in the
// tree has.
func spareNumbers(t *image.Tree, count int) []int32 {
	used := map[int]bool{1: true}
	for _, p := range t.Processes {
		used[p.PID], used[p.Group], used[p.Session] = true, true, true
		for _, th := range p.Threads {
			used[th.TID] = true
		}
	}
	spare := make([]int32, 0, count)
	for n := 2; len(spare) < count; n++ {
		if !used[n] {
			spare = append(spare, int32(n))
		}
	}
	return spare
}

// fillAll gives all processes their memory.
func (r *restore) fillAll() error {
	if err := r.each(r.fill); err != nil {
		return err
	}
	if err := r.removeSegments(); err != nil {
		return err
	}
	return r.files.Seal()
}

// openFilesOfThreads gives processes those of their files that are of threads.
func (r *restore) openFilesOfThreads() error {
	return r.each(func(n *newProcess) error {
		if !r.files.OpensLate(n.image.Descriptors, true) {
			return nil
		}
		return r.openOfThreads(n)
	})
}

// completeAll gives all processes the descriptors that need the others.
func (r *restore) completeAll() error {
	err := r.each(r.openLate)
	if err == nil {
		err = r.completeAdrift()
	}
	if err == nil {
		err = r.each(r.complete)
	}
	if err == nil {
		err = r.files.Finish()
	}
	if err == nil {
		err = r.foregrounds()
	}
	return err
}

// exists reports whether a process of the tree has a number.
func (r *restore) exists(pid int) bool {
	for _, p := range r.tree.Processes {
		if p.PID == pid {
			return true
		}
	}
	return false
}

// ended makes a pidfd of a process of the incarnation that has ended.
func (r *restore) ended() (int, error) {
	b := tracee.NewBatch()
	out := b.PutWords(0)
	pid, _ := b.Fork(tracee.CloneArgs{
		Flags: unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_PIDFD, PIDFD: uint64(out), SetTID: []int32{r.spawned.spare},
	}, tracee.EndExit, func(*tracee.Batch) {})
	b.Call(unix.SYS_WAIT4, pid, nil, unix.WALL, nil)
	b.SendFDs(tracee.Ref(out))
	b.Call(unix.SYS_CLOSE, tracee.Ref(out))
	fds, err := r.target.Init.DoReceive(b, 1)
	if err != nil {
		return -1, fmt.Errorf("make a process that has ended: %w", err)
	}
	return fds[0], nil
}

// credentials are those of a thread, or a zombie, as package confine takes them.
func credentials(of *image.Credentials) confine.Credentials {
	ids := func(a [4]int) confine.IDs {
		return confine.IDs{Real: uint32(a[0]), Effective: uint32(a[1]), Saved: uint32(a[2]), FS: uint32(a[3])}
	}
	c := confine.Credentials{
		UID: ids(of.UID), GID: ids(of.GID),
		Effective: confine.Capabilities(of.Effective), Permitted: confine.Capabilities(of.Permitted),
		Inheritable: confine.Capabilities(of.Inheritable), Ambient: confine.Capabilities(of.Ambient),
		Bounding:   confine.Capabilities(of.Bounding),
		SecureBits: of.SecureBits, NoNewPrivs: of.NoNewPrivs,
	}
	for _, g := range of.Groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}
