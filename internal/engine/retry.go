package engine

import (
	"errors"
	"slices"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// How long what could not be written waits until it is tried again: at first,
// and, twice as long after each failure, at most. A try at a full disk costs the
// worker alone, which has the lowest priority.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// retries are checkpoints that could not be made durable for a reason that may
// pass: the disk is full, or no worker comes. They are reported as failed,
// and tried again one at a time, until one succeeds: then the others follow at
// once. Nothing holds them in their trees.
//
// The keeper's lock guards it.
type retries struct {
	waiting []*keeping
	pause   time.Duration // the last one; 0: the next failure is the first
	timer   *time.Timer   // nil: none is armed
	due     time.Time     // of the timer
	full    error         // what the disk said at the last failure, if it is full
}

// mayPass reports whether what failed so may succeed later.
func mayPass(err error) bool {
	switch fault.KindOf(err) {
	case fault.Exhausted:
		return !errors.Is(err, worker.ErrTooManyFiles)
	case fault.Unavailable, fault.Internal:
		return true
	}
	return false
}

// later has a checkpoint tried again. k.mu is held.
func (k *keeper) later(x *keeping, why error) {
	r := &k.retries
	if r.full = nil; fault.Is(why, fault.Exhausted) {
		r.full = why
	}
	if !slices.ContainsFunc(r.waiting, func(w *keeping) bool { return w.checkpoint == x.checkpoint }) {
		r.waiting = append(r.waiting, &keeping{box: x.box, checkpoint: x.checkpoint})
	}
}

// arm has something that waits tried after a while, if nothing is about to be. k.mu is held.
func (k *keeper) arm() {
	r := &k.retries
	if r.timer == nil && len(r.waiting) > 0 && !k.closed {
		r.pause = min(max(2*r.pause, firstRetry), lastRetry)
		r.set(r.pause, k.retry)
	}
}

// hasten has what waits tried within some time, and after the first pauses again if it
// fails: the reason may be gone. k.mu is held.
func (k *keeper) hasten(within time.Duration) {
	r := &k.retries
	r.pause = 0
	if len(r.waiting) > 0 && !k.closed && (r.timer == nil || time.Until(r.due) > within) {
		r.set(within, k.retry)
	}
}

func (r *retries) set(after time.Duration, f func()) {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer, r.due = time.AfterFunc(after, f), time.Now().Add(after)
}

// retry queues the first that waits and is still to be written.
func (k *keeper) retry() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.retries.timer = nil
	for len(k.retries.waiting) > 0 && !k.closed {
		x := k.retries.waiting[0]
		k.retries.waiting = k.retries.waiting[1:]
		if x.checkpoint.described().Durable != control.DurableFailed {
			continue // somebody asked for it meanwhile
		}
		k.mu.Unlock()
		_, err := k.engine.keep(x.box, x.checkpoint)
		k.mu.Lock()
		if err == nil {
			return // when it is settled the next one's time comes
		}
	}
}

// full is what the disk said if checkpoints wait for it to have room, or nil.
func (k *keeper) full() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.retries.waiting) == 0 {
		return nil
	}
	return k.retries.full
}
