package engine

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// The steps of a restore that can be made to fail.
var (
	failCloned   = failpoint.New("engine.restore.cloned")
	failBooted   = failpoint.New("engine.restore.booted")
	failRestored = failpoint.New("engine.restore.restored")
)

// reborn is a body made from a checkpoint whose processes stand, and the
// sessions that go on in it.
type reborn struct {
	body      *body
	sessions  []*session
	processes []*sandbox.Process
}

// restore makes a body for b from a checkpoint. Its processes stand until
// [reborn.release]. The zygotes clone while the files are made ready: the two need
// nothing of each other.
func (e *Engine) restore(b *box, c *checkpoint, steps *stages, how *pace) (_ *reborn, err error) {
	o, err := e.family.newBody(b, clocks(c))
	if err != nil {
		return nil, err
	}
	r := &reborn{body: o}
	defer func() {
		if err != nil {
			r.abandon()
		}
	}()
	steps.done("boot")
	o.origin = c
	for key, z := range c.zygotes {
		o.ancestors[key] = z.hold()
	}
	spawned := process.Spawn(c.tree, process.SpawnTarget{
		PIDFD: o.blank.PIDFD(), Time: o.time, Cgroup: o.blank.Cgroup().FD(), Zygote: c.zygote, Realtime: realtime && how == nil,
	})
	defer spawned.Close()
	upper := b.nextUpper()
	if err := e.family.store.Clone(c.snapshot, upper, b.quota); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.family.store.Remove(upper))
		}
	}()
	steps.done("clone files")
	if err := failCloned.Hit(); err != nil {
		return nil, err
	}
	if err := o.attach(b, upper); err != nil {
		return nil, err
	}
	steps.done("attach")
	o.since = c.id
	if err := failBooted.Hit(); err != nil {
		return nil, err
	}
	if err := c.files.write(o.root); err != nil {
		return nil, err
	}
	if err := r.processesOf(b, c, spawned, steps, how); err != nil {
		return nil, err
	}
	return r, failRestored.Hit()
}

// clocks are how far ahead of the host's the clocks inside go on: from their
// readings at the checkpoint, so that they never go back.
func clocks(c *checkpoint) (out [2]time.Duration) {
	for i, clock := range []struct {
		id   int32
		then int64
	}{{unix.CLOCK_MONOTONIC, c.tree.Monotonic}, {unix.CLOCK_BOOTTIME, c.tree.Boottime}} {
		var now unix.Timespec
		if unix.ClockGettime(clock.id, &now) == nil {
			out[i] = time.Duration(clock.then - now.Nano())
		}
	}
	return out
}

// processesOf restores the processes and sessions of a checkpoint.
func (r *reborn) processesOf(b *box, c *checkpoint, spawned *process.Spawned, steps *stages, how *pace) (err error) {
	o := r.body
	inner := map[string]streams{}
	defer func() {
		for _, s := range inner {
			s.close()
		}
	}()
	for _, old := range c.sessions {
		s := &session{Session: old.Session}
		s.Sandbox = b.id
		r.sessions = append(r.sessions, s)
		p, err := o.inc.Adopt(s.PID)
		if err != nil {
			return err
		}
		r.processes = append(r.processes, p)
		if s.TTY {
			continue
		}
		if inner[s.ID], err = s.openPipes(); err != nil {
			return err
		}
		if old.stdinClosed {
			_ = s.outer[0].Close()
			s.outer[0] = nil
		}
	}
	o.start()
	target := o.restoreTarget(inner, r.takeMaster)
	target.Urgent = realtime && how == nil
	err = o.thread.do(func() error {
		if target.Urgent { // a group with a limit on processor time may need a budget for it
			if revoke, err := o.inc.Cgroup().AllowRealtime(cgroup.RealtimeBudget); err == nil {
				defer func() { _ = revoke() }()
			}
		}
		make := func() error {
			live, took, err := process.Restore(c.tree, spawned, target)
			for _, s := range took {
				steps.ns["restore "+s.Name] += s.Took.Nanoseconds()
			}
			o.live = live
			return err
		}
		return how.run(make)
	})
	steps.done("restore")
	return err
}

// restoreTarget is the body as restore sees it. inner are the inner ends of the
// sessions' pipes.
func (o *body) restoreTarget(inner map[string]streams, master func(string, int) error) process.Target {
	target := process.Target{
		Init: o.inc, Root: o.root, Walls: o.inc.Walls(),
		Session: func(id string, stream int) (int, bool) {
			s, ok := inner[id]
			if !ok || stream < 0 || stream >= len(s) {
				return -1, false
			}
			return s[stream], true
		},
		Master: master,
		Live:   o.liveConfig(),
	}
	if o.inc.Cgroup().NeedsAdd() {
		target.Enter = o.inc.Cgroup().Add
	}
	return target
}

// takeMaster gives a session the master of its terminal.
func (r *reborn) takeMaster(id string, fd int) error {
	for _, s := range r.sessions {
		if s.ID == id && s.TTY {
			return s.takeMaster(fd)
		}
	}
	_ = unix.Close(fd) // it had ended, so the terminal is hung up for what it left behind
	return nil
}

// abandon ends a body that comes to nothing. Its files are the caller's.
func (r *reborn) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	if err := r.body.close(ctx); err != nil {
		r.body.family.log.Error("end a body that came to nothing", "error", err)
	}
	for _, s := range r.sessions {
		s.close()
	}
}

// release lets the processes go.
func (r *reborn) release() error { return r.body.thread.do(r.body.live.Resume) }

// install makes the sessions those of the box, in its generation: they take the place of those of
// the old body, whose records of others end as rolled back.
func (e *Engine) install(b *box, r *reborn) (live []control.Session, files []*os.File, err error) {
	b.sessions.mu.Lock()
	old := b.sessions.all
	b.sessions.all = map[string]*session{}
	for _, s := range r.sessions {
		s.Generation = b.generation
		b.sessions.all[s.ID] = s
	}
	var ended []*session
	var errs []error
	for id, s := range old {
		if b.sessions.all[id] != nil {
			s.Ended = true // its waiter has nothing to report any more
			s.close()
			continue
		}
		b.sessions.all[id] = s
		if !s.Ended {
			s.Ended, s.ExitCode, s.Reason = true, 128+int(unix.SIGKILL), "rolled back"
			ended = append(ended, s)
		}
		s.close()
	}
	b.sessions.mu.Unlock()
	for _, s := range ended {
		e.events.SessionEnded(s.Session)
	}
	// A command may end from the moment on that somebody waits for it: its
	// descriptors are taken before.
	for _, s := range slices.SortedFunc(slices.Values(r.sessions), func(a, b *session) int { return inOrder(a.Session, b.Session) }) {
		fs, err := b.sessions.duplicates(s)
		if err != nil {
			closeFiles(files)
			files, live = nil, nil
			errs = append(errs, err)
			break
		}
		files = append(files, fs...)
		live = append(live, s.Session)
	}
	for i, s := range r.sessions {
		e.await(b, r.body, s, r.processes[i])
	}
	return live, files, errors.Join(errs...)
}
