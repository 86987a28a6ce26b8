package engine

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tree"
)

// The steps of a checkpoint that can be made to fail.
var (
	failPresync  = failpoint.New("engine.checkpoint.presync")
	failStopped  = failpoint.New("engine.checkpoint.stopped")
	failCaptured = failpoint.New("engine.checkpoint.captured")
	failSnapshot = failpoint.New("engine.checkpoint.snapshot")
	failResumed  = failpoint.New("engine.checkpoint.resumed")
	failZygotes  = failpoint.New("engine.checkpoint.zygotes")
	failCommit   = failpoint.New("engine.checkpoint.commit")
)

// Checkpoint takes a checkpoint of a live sandbox. It commits whole or leaves
// no trace; the live tree goes on in either case. An asynchronous one is
// answered when the processes run again, see finish.go.
func (e *Engine) Checkpoint(_ context.Context, r control.CheckpointRequest) (control.Checkpoint, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.Checkpoint{}, err
	}
	switch {
	case r.Checkpoint == "":
		return control.Checkpoint{}, fault.New(fault.Invalid, "a checkpoint without an id")
	case r.Keep && e.keeper.on:
		e.keeper.admit(b)
	}
	if err := e.evictor.admit(); err != nil {
		return control.Checkpoint{}, fault.New(fault.KindOf(err), "checkpoint sandbox %s: %w", b.id, err)
	}
	c, items, err := e.begin(b, r)
	if err == nil && !r.Async {
		err = c.await()
	}
	if err != nil {
		return control.Checkpoint{}, fault.New(fault.KindOf(err), "checkpoint sandbox %s: %w", b.id, err)
	}
	out, err := e.report(b, r.Checkpoint)
	out.Items = items
	return out, err
}

// begin does what a checkpoint does up to the resume, and puts it into the tree.
// The rest is under way when it returns. It lists the items if that is asked.
func (e *Engine) begin(b *box, r control.CheckpointRequest) (*checkpoint, []control.Item, error) {
	steps := newStages()
	b.mu.Lock()
	defer b.mu.Unlock()
	o, err := b.live()
	if err != nil {
		return nil, nil, err
	}
	if err := b.tree.Check(r.Checkpoint, r.Name); err != nil {
		return nil, nil, err
	}
	o.finishing.slots <- struct{}{} // given back when it is finished
	steps.done("turn")
	c, f, err := e.checkpoint(b, o, r.Checkpoint, false, steps)
	if err != nil {
		<-o.finishing.slots
		e.tend(b, o)
		return nil, nil, err
	}
	var items []control.Item
	if r.Explain && f.capture.KeepShared(e.family.files.file) == nil { // if not, it fails there again, and is reported
		items = explain(c, f.capture)
	}
	f.async, f.keep = r.Async, r.Keep && e.keeper.on
	waiting, t := o.finishing, f.turn
	c.need = func() { waiting.need(t) }
	c.report.ID, c.report.Name = r.Checkpoint, r.Name
	err = failCommit.Hit()
	var n *tree.Node[*checkpoint]
	var release func() // it is not freed while it is made
	if err == nil {
		n, release, err = b.tree.AddUsed(r.Checkpoint, r.Name, c)
	}
	if err != nil {
		f.drop()
		<-o.finishing.slots
		return nil, nil, err
	}
	o.since = c.id
	f.queue()
	e.background(func() {
		defer release()
		e.finish(b, n, f)
	})
	return c, items, nil
}

// tend lets go of threads that a stop which failed has told to stop, and that
// stop only later: parents of vfork, when their child ends.
func (e *Engine) tend(b *box, o *body) {
	e.background(func() {
		for more := true; more; time.Sleep(tendEvery) {
			more = false
			b.mu.RLock()
			if b.body == o && o.live != nil {
				_ = o.thread.do(func() error { more = o.live.Tend(); return nil })
			}
			b.mu.RUnlock()
		}
	})
}

// tendEvery is how long such a thread may stand.
const tendEvery = 5 * time.Millisecond

// report is a checkpoint as the tree shows it.
func (e *Engine) report(b *box, id string) (control.Checkpoint, error) {
	for _, n := range b.tree.Nodes() {
		if n.ID == id {
			return describe(n), nil
		}
	}
	return control.Checkpoint{}, fault.New(fault.NotFound, "the sandbox has no checkpoint %q", id)
}

func describe(n tree.Node[*checkpoint]) control.Checkpoint {
	r := n.Data.described()
	r.ID, r.Name, r.Parent = n.ID, n.Name, n.Parent
	return r
}

// stages measures the steps of an operation.
type stages struct {
	last time.Time
	ns   map[string]int64
}

func newStages() *stages { return &stages{time.Now(), map[string]int64{}} }

func (s *stages) done(name string) {
	now := time.Now()
	s.ns[name] += now.Sub(s.last).Nanoseconds()
	s.last = now
}

// copy is where the measurement stands.
func (s *stages) copy() stages { return stages{s.last, maps.Clone(s.ns)} }

// again goes back to where it stood, since what was done since came to nothing and is to be
// done again.
func (s *stages) again(stood stages) {
	*s = stood.copy()
	s.done("tries")
}

// writeBack has the file system write what is dirty, all that it would else write
// in the stop. Soon after another checkpoint, which has committed all, that is data of
// this body alone: another commit would cost more than it spares.
func (o *body) writeBack(soon bool) error {
	if soon {
		return o.family.store.Flush(o.upper)
	}
	return o.family.store.Presync()
}

// soonAfter is how long after another checkpoint one spares what is done before a stop to
// make it shorter, where that had nothing to do the last time.
const soonAfter = time.Second

// checkpoint stops the tree, captures it and lets it go on. It returns what a
// node of the tree owns, without its zygotes, and what is left to do. With stay,
// the tree does not go on unless something fails. The caller holds b.mu.
func (e *Engine) checkpoint(b *box, o *body, id string, stay bool, steps *stages) (_ *checkpoint, _ *unfinished, err error) {
	if err := o.follow(); err != nil {
		return nil, nil, err
	}
	st, soon := e.family.store, time.Since(o.snapped) < soonAfter
	if err := errors.Join(failPresync.Hit(), o.writeBack(soon)); err != nil {
		return nil, nil, err
	}
	st.Hold()
	defer st.Release()
	steps.done("presync")
	c := newCheckpoint(e.family, b, id)
	f := &unfinished{body: o, checkpoint: c, steps: steps, since: o.since, turn: newTurn()}
	if f.arena, err = e.family.arenas.take(toWarm(soon, o.took)); err != nil {
		return nil, nil, err
	}
	f.arena.Limit(machineMemory().forCapture())
	err = o.thread.do(func() (err error) {
		f.epoch = o.finishing.epoch(o.live)
		o.live.Prepare(soon)
		if err := o.live.CopyAhead(f.arena, soon); err != nil {
			return err
		}
		// A group with a limit on processor time may need a budget for it.
		if revoke, err := o.inc.Cgroup().AllowRealtime(cgroup.RealtimeBudget); err == nil {
			defer func() { _ = revoke() }()
		}
		steps.done("prepare")
		begun := steps.copy()
		for try := 0; ; try++ {
			f.capture, err = e.attempt(b, o, c, f.arena, steps, stay, try < hasty)
			if try == len(pauses) || !fault.Passes(err) {
				return err
			}
			time.Sleep(pauses[try]) // the processes go on meanwhile
			e.family.unaccepted.prepare()
			steps.again(begun)
		}
	})
	if err == nil {
		if err = failResumed.Hit(); err != nil && stay {
			err = errors.Join(err, o.thread.do(o.live.Resume))
		}
	}
	if err != nil {
		f.drop()
		return nil, nil, err
	}
	f.capture.Join()
	o.took = f.arena.Used()
	c.tree = f.capture.Tree
	c.report.Sandbox, c.report.Created, c.report.StageNS = b.id, c.created, maps.Clone(steps.ns)
	for _, d := range f.capture.Deltas {
		c.report.DirtyBytes += d.Bytes()
	}
	c.report.FileBytes = o.written()
	for _, p := range c.tree.Processes {
		c.report.Processes++
		c.report.Threads += len(p.Threads)
	}
	return c, f, nil
}

// written is what was written to files since the last checkpoint of the body and is still held,
// in bytes; 0 where that is not counted. The box's lock is held.
func (o *body) written() int64 {
	now, err := o.family.store.Usage(o.upper)
	if err != nil {
		return 0
	}
	since := now - o.counted
	o.counted = now
	return max(since, 0) // less, if checkpoints were removed meanwhile
}

// attempt is one try.
func (e *Engine) attempt(b *box, o *body, c *checkpoint, arena *memory.Arena, steps *stages, stay, hasty bool) (capture *process.Capture, err error) {
	letRead, err := b.sessions.holdTerminals()
	if err != nil {
		return nil, err
	}
	defer letRead()
	e.family.crew.Prepare(besideStop)
	e.family.window.enter()
	defer e.family.window.leave()
	err = sched.Urgently(func() (err error) {
		capture, err = e.stand(b, o, c, arena, steps, stay, hasty)
		return err
	})
	return capture, err
}

// besideStop is how much is done at once beside the thread that stops the processes: their
// files, their pages and their shared memory are copied.
const besideStop = 3

// pauses are how long the processes go on before a checkpoint is tried again
// that was refused over something of the moment: unread messages, a process that
// is ending.
var pauses = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
}

// hasty is how many tries are made before what takes long to capture is captured, rather
// than waited for.
const hasty = 4

// stand is the frozen window: everything between stop and resume. With stay,
// nothing resumes that was captured.
func (e *Engine) stand(b *box, o *body, c *checkpoint, arena *memory.Arena, steps *stages, stay, hasty bool) (_ *process.Capture, err error) {
	begin := time.Now()
	steps.done("boost")
	if err := o.live.Stop(); err != nil {
		return nil, err
	}
	steps.done("stop")
	captured := false
	defer func() {
		if err != nil || !stay {
			if e := o.live.Resume(); err == nil {
				err = e
			}
		}
		if err != nil && captured {
			o.live.Discard()
		}
		c.report.FrozenNS = time.Since(begin).Nanoseconds()
		steps.done("resume")
	}()
	if err := failStopped.Hit(); err != nil {
		return nil, err
	}
	var snapshot func() error // waits for it, if it was begun
	env := b.sessions.env(o.root)
	env.Hasty = hasty
	env.Unaccepted = e.family.unaccepted.ask
	env.PathOf = func(typ int32, handle []byte) (string, error) { return e.family.store.PathOf(o.upper, typ, handle) }
	capture, err := o.live.Capture(env, arena, func() {
		snapshot = e.family.crew.Beside(func() error {
			return errors.Join(failSnapshot.Hit(), e.family.store.Snapshot(o.upper, c.snapshot))
		})
	})
	captured = err == nil
	if err == nil {
		err = failCaptured.Hit()
	}
	if err == nil {
		c.files, err = readMemoryFiles(o.root, c.family.idBase)
	}
	if err == nil {
		c.sessions = b.sessions.running(capture.Tree)
		for _, s := range capture.Stages {
			steps.ns["capture "+s.Name] = s.Took.Nanoseconds()
		}
	}
	steps.done("capture")
	var e2 error
	if snapshot != nil {
		e2 = snapshot()
		o.snapped = time.Now()
	}
	steps.done("snapshot")
	if err != nil && snapshot != nil && e2 == nil { // the files of nothing
		_ = e.family.store.Remove(c.snapshot)
	}
	if err = errors.Join(err, e2); err != nil {
		if capture != nil {
			capture.Discard()
		}
		return nil, err
	}
	return capture, nil
}

// CheckpointRemove takes a checkpoint out of its tree. What it takes in memory
// and in the pool is freed behind that.
func (e *Engine) CheckpointRemove(ctx context.Context, r control.CheckpointRef) error {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return err
	}
	n, release, err := b.tree.Use(r.Checkpoint)
	if err != nil {
		return err
	}
	removed := false
	defer e.background(func() {
		release()
		if removed {
			close(n.Data.removed)
		}
	})
	e.keeper.drop(func(x *keeping) bool { return x.checkpoint == n.Data && !e.origins.held(n.ID) })
	// The durable form goes first: what is left of it after a crash belongs to a
	// checkpoint that the tree still has.
	if err := e.forgetDurable(ctx, n.Data); err != nil {
		return err
	}
	if err := b.tree.Remove(n.ID); err != nil {
		return err
	}
	removed = true
	gone, _ := e.standbys.unwish(b, n.ID)
	e.background(func() { e.standbys.abandon(gone) })
	return nil
}

// Tree is the checkpoint tree of a sandbox.
func (e *Engine) Tree(_ context.Context, r control.SandboxRequest) (control.TreeReply, error) {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return control.TreeReply{}, err
	}
	out := control.TreeReply{Sandbox: b.id, At: b.tree.At(), Origin: b.origin, Checkpoints: []control.Checkpoint{}}
	for _, n := range b.tree.Nodes() {
		out.Checkpoints = append(out.Checkpoints, describe(n))
	}
	return out, nil
}
