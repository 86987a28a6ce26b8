package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// asleep reports whether a sandbox stands still: it has no body, and a
// checkpoint to come back from.
func (b *sandbox) asleep() bool {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	return !b.gone && asleep(b.rec.State)
}

func asleep(s store.State) bool { return s == store.Paused || s == store.Hibernated }

// wake makes a sandbox that stands still run on, and leaves others alone. Who
// needs a body calls it before taking the sandbox's lock.
func (s *Sandboxes) wake(ctx context.Context, b *sandbox) error {
	b.awaitReport(ctx)
	if !b.asleep() {
		return nil
	}
	_, err := s.resume(ctx, b)
	return err
}

// awake is wake, and takes the sandbox's lock, shared or exclusively: it may have been
// put to sleep again in between.
func (s *Sandboxes) awake(ctx context.Context, b *sandbox, lock sync.Locker) error {
	for {
		if err := s.wake(ctx, b); err != nil {
			return err
		}
		lock.Lock()
		if !b.asleep() {
			return nil
		}
		lock.Unlock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// reportTime is how long the host may take to clean up after a supervisor.
const reportTime = 30 * time.Second

// awaitReport waits for the host's report of a supervisor that is gone: what
// becomes of the sandbox is known then.
func (b *sandbox) awaitReport(ctx context.Context) {
	var late <-chan time.Time
	for {
		b.recMu.Lock()
		fam, changed := b.fam, b.changed
		b.recMu.Unlock()
		if fam == nil {
			return
		}
		select {
		case <-fam.client.Done():
		default:
			return
		}
		if late == nil {
			late = time.After(reportTime)
		}
		select {
		case <-changed:
		case <-late:
			return
		case <-ctx.Done():
			return
		}
	}
}

// resume is wake; it returns how long that took.
func (s *Sandboxes) resume(ctx context.Context, b *sandbox) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.asleep() { // another one was faster
		return 0, nil
	}
	begin := time.Now()
	if err := s.resumeLocked(ctx, b); err != nil {
		return 0, fmt.Errorf("resume sandbox %q: %w", display(b.record()), err)
	}
	return time.Since(begin), nil
}

// resumeLocked does so; b.mu is held exclusively.
func (s *Sandboxes) resumeLocked(ctx context.Context, b *sandbox) error {
	client, err := s.reach(ctx, b)
	if err != nil {
		return err
	}
	rec := b.record()
	at, where := rec.At, "; it came back at checkpoint "+rec.At
	if at == "" { // none of its own is durable
		at, where = rec.ForkedFrom, "; it came back at checkpoint "+rec.ForkedFrom+", which it was forked from"
	}
	if at == "" || rec.State == store.Lost {
		return s.nothingLeft(ctx, b)
	}
	b.hold()
	defer s.letGo(b)
	// A client that goes away must not leave it half done.
	r, files, err := client.Rollback(context.WithoutCancel(ctx), control.CheckpointRef{Sandbox: rec.ID, Checkpoint: at})
	if rec.At == "" && fault.Is(err, fault.NotFound) {
		return s.nothingLeft(ctx, b)
	}
	if err != nil {
		return err
	}
	mark := ""
	if rec.Reason != "" { // time was lost: who is attached is told
		mark = at
	}
	write, err := s.reborn(ctx, b, client, r.Sandbox, rec.At, mark, files)
	err = errors.Join(err, write())
	if mark != "" {
		_, e := s.update(ctx, b, func(r *store.Sandbox) { r.Reason = rec.Reason + where })
		err = errors.Join(err, e)
	}
	if err != nil {
		return fmt.Errorf("sessions: %w", err)
	}
	return nil
}

// nothingLeft marks a sandbox that stands still as lost: it has nothing to come
// back from. b.mu is held.
func (s *Sandboxes) nothingLeft(ctx context.Context, b *sandbox) error {
	const reason = "nothing of it was durable"
	rec, err := s.update(ctx, b, func(r *store.Sandbox) {
		if r.LostReason == "" {
			r.LostReason = reason
			if r.Reason != "" {
				r.LostReason = r.Reason + ", and " + reason
			}
		}
		r.State, r.Reason = store.Lost, ""
	})
	b.recMu.Lock()
	running := values(b.running)
	b.recMu.Unlock()
	for _, se := range running {
		se.Abandon(ctx, se.Record().Generation, 128+9, session.Lost)
	}
	return errors.Join(fault.New(fault.Lost, "%s", rec.LostReason), err, s.endAll(ctx, rec.ID, session.Lost))
}

// Pause makes a sandbox stand still. What it is, is durable when Pause returns;
// with hibernate nothing of it is left in memory.
func (s *Sandboxes) Pause(ctx context.Context, ref string, hibernate bool) (store.Sandbox, error) {
	verb := "pause"
	if hibernate {
		verb = "hibernate"
	}
	b, err := s.find(ctx, ref)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("%s: %w", verb, err)
	}
	b.awaitReport(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	rec, err := s.pause(ctx, b, hibernate)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("%s sandbox %q: %w", verb, display(b.record()), err)
	}
	return rec, nil
}

// pause does so; b.mu is held exclusively.
func (s *Sandboxes) pause(ctx context.Context, b *sandbox, hibernate bool) (store.Sandbox, error) {
	state := store.Paused
	if hibernate {
		state = store.Hibernated
	}
	rec := b.record()
	if rec.State == store.Hibernated || rec.State == state {
		return rec, nil
	}
	client, err := b.tree()
	if rec.State != store.Paused && err == nil {
		client, err = b.usable()
	}
	if err != nil {
		return rec, err
	}
	k := store.Checkpoint{ID: id.New(id.Checkpoint), Sandbox: rec.ID, Created: time.Now().UTC()}
	if rec.State == store.Paused { // it is only to leave the memory
		k.ID = rec.At
	} else if err := s.store.AddCheckpoint(ctx, k); err != nil {
		return rec, err
	}
	b.recMu.Lock()
	running := values(b.running)
	b.recMu.Unlock()
	for _, se := range running {
		se.Suspend()
	}
	// What was begun is finished, whoever goes away.
	info, err := client.Suspend(context.WithoutCancel(ctx), control.SuspendRequest{Sandbox: rec.ID, Checkpoint: k.ID, Unload: hibernate})
	if err != nil {
		if rec.State != store.Paused {
			s.undoCheckpoint(ctx, client, k)
			s.goOn(ctx, b, client, running)
		}
		return rec, err
	}
	s.note(ctx, info)
	rec, err = s.update(ctx, b, func(r *store.Sandbox) { r.State, r.At, r.Reason = state, k.ID, "" })
	s.pruneSuspensions(context.WithoutCancel(ctx), b, client, k.ID)
	return rec, err
}

// pruneSuspensions removes the checkpoints of a sandbox that earlier suspensions have
// made: nobody asked for them, and the newest is what it comes back from. Those
// that cannot be removed now are met again by the next suspension. b.mu is held.
func (s *Sandboxes) pruneSuspensions(ctx context.Context, b *sandbox, client *control.Client, newest string) {
	all, err := s.store.Checkpoints(ctx, b.record().ID)
	for _, c := range all {
		if !c.Info.Suspension || c.Name != "" || c.ID == newest {
			continue
		}
		e := client.CheckpointRemove(ctx, control.CheckpointRef{Sandbox: c.Sandbox, Checkpoint: c.ID})
		if e == nil || fault.Is(e, fault.NotFound) {
			e = s.dropCheckpoint(ctx, b, c.ID)
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		s.log.Error("checkpoints of earlier suspensions are left", "sandbox", b.record().ID, "error", err)
	}
}

// goOn gives sessions their streams back after a pause that failed.
func (s *Sandboxes) goOn(ctx context.Context, b *sandbox, client *control.Client, running []*session.Session) {
	ctx = context.WithoutCancel(ctx)
	for _, se := range running {
		r := se.Record()
		if r.Ended {
			continue
		}
		state, files, err := client.Adopt(ctx, control.SessionRequest{Sandbox: r.Sandbox, Session: r.Key})
		if err == nil {
			err = se.GoOn(state, files)
		}
		if err != nil && !fault.Is(err, fault.Unavailable) { // of a dead supervisor's nothing is left
			s.log.Error("a session lost its streams", "sandbox", b.record().ID, "session", r.ID, "error", err)
		}
	}
}

// Resumed is a sandbox that runs on.
type Resumed struct {
	Sandbox   store.Sandbox
	ElapsedNS int64
}

// Resume makes a sandbox that stands still run on. It is no error if it runs.
func (s *Sandboxes) Resume(ctx context.Context, ref string) (Resumed, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return Resumed{}, fmt.Errorf("resume: %w", err)
	}
	b.awaitReport(ctx)
	took, err := s.resume(ctx, b)
	if err == nil {
		b.mu.RLock()
		_, err = b.usable()
		b.mu.RUnlock()
	}
	if err != nil {
		return Resumed{}, err
	}
	return Resumed{b.record(), took.Nanoseconds()}, nil
}
