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

// mostUnexplained is how often what fails for no reason that is known to pass is
// tried again: for two minutes.
const mostUnexplained = 8

// retries are checkpoints that could not be made durable for a reason that may
// pass. They are reported as failed, and tried again. Nothing holds them in their
// trees.
//
// The keeper's lock guards it.
type retries struct {
	outside line  // the disk is full, or no worker comes: after a success the others follow at once
	own     line  // it may be about the checkpoint itself: the success of another one says nothing
	full    error // what the disk said when it was full, until something is written
}

// line are checkpoints that are tried again one at a time.
type line struct {
	waiting []*keeping
	asked   *keeping      // it left those that wait and is about to be queued
	pause   time.Duration // the last one; 0: the next failure is the first
	timer   *time.Timer   // nil: none is armed
	due     time.Time     // of the timer
}

func (r *retries) lines() []*line { return []*line{&r.outside, &r.own} }

// mayPass reports whether what failed so is tried again.
func (k *keeper) mayPass(c *checkpoint, err error) bool {
	switch fault.KindOf(err) {
	case fault.Exhausted:
		return !errors.Is(err, worker.ErrTooManyFiles)
	case fault.Unavailable:
		return true
	case fault.Internal:
		k.mu.Lock()
		defer k.mu.Unlock()
		c.unexplained++
		return c.unexplained <= mostUnexplained
	}
	return false
}

// later has a checkpoint tried again. k.mu is held.
func (k *keeper) later(x *keeping, why error) {
	r := &k.retries
	l := &r.outside
	switch fault.KindOf(why) {
	case fault.Exhausted:
		r.full = why
	case fault.Internal:
		if l = &r.own; len(l.waiting) == 0 && x.checkpoint.unexplained <= 1 {
			l.pause = 0 // the first of its kind
		}
	}
	r.remove(func(w *keeping) bool { return w.checkpoint == x.checkpoint })
	l.waiting = append(l.waiting, &keeping{box: x.box, checkpoint: x.checkpoint})
}

// remove takes some out of those that wait.
func (r *retries) remove(match func(*keeping) bool) {
	for _, l := range r.lines() {
		l.waiting = slices.DeleteFunc(l.waiting, match)
	}
}

// asks reports whether one of some is about to be queued.
func (r *retries) asks(match func(*keeping) bool) bool {
	return slices.ContainsFunc(r.lines(), func(l *line) bool { return l.asked != nil && match(l.asked) })
}

// arm has something that waits tried after a while, if nothing is about to be. k.mu is held.
func (k *keeper) arm() {
	for _, l := range k.retries.lines() {
		if l.timer == nil && len(l.waiting) > 0 && !k.closed {
			l.pause = min(max(2*l.pause, firstRetry), lastRetry)
			k.set(l, l.pause)
		}
	}
}

// hasten has what waits tried within some time, and after the first pauses again if it
// fails: the reason may be gone. k.mu is held.
func (k *keeper) hasten(l *line, within time.Duration) {
	l.pause = 0
	if len(l.waiting) > 0 && !k.closed && (l.timer == nil || time.Until(l.due) > within) {
		k.set(l, within)
	}
}

func (k *keeper) set(l *line, after time.Duration) {
	l.stop()
	l.timer, l.due = time.AfterFunc(after, func() { k.retry(l) }), time.Now().Add(after)
}

func (l *line) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// retry queues the first that waits and is still to be written.
func (k *keeper) retry(l *line) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.timer = nil
	for len(l.waiting) > 0 && l.asked == nil && !k.closed {
		x := l.waiting[0]
		l.waiting = l.waiting[1:]
		if x.checkpoint.described().Durable != control.DurableFailed {
			continue // somebody asked for it meanwhile
		}
		l.asked = x
		k.mu.Unlock()
		_, err := k.engine.keep(x.box, x.checkpoint)
		k.mu.Lock()
		l.asked = nil
		k.changed.Broadcast()
		if err == nil {
			return // when it is settled the next one's time comes
		}
	}
}

// written notes that a checkpoint could be written. k.mu is held.
func (k *keeper) written(c *checkpoint) {
	r := &k.retries
	r.full = nil
	k.hasten(&r.outside, 0)
	if c.unexplained > 0 { // it was not about the checkpoint
		c.unexplained, r.own.pause = 0, 0
	}
}

// full is what the disk said if checkpoints are still to be written, and it had no
// room for the last one; or nil.
func (k *keeper) full() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := &k.retries
	if len(r.outside.waiting) == 0 && r.outside.asked == nil && len(k.queue) == 0 && k.busy == nil {
		return nil
	}
	return r.full
}
