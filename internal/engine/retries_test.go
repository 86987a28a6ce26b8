package engine

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// newIdleKeeper is a keeper whose steps the test takes itself.
func newIdleKeeper(t *testing.T) *keeper {
	k := &keeper{}
	k.changed = sync.NewCond(&k.mu)
	t.Cleanup(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.closed = true
		for _, l := range k.retries.lines() {
			l.stop()
		}
	})
	return k
}

func newFailed() *keeping {
	return &keeping{checkpoint: &checkpoint{keeping: make(chan struct{}), report: control.Checkpoint{Durable: control.DurableFailed}}}
}

var (
	errNoRoom = fault.New(fault.Exhausted, "no space left")
	errOdd    = errors.New("odd")
)

// locked runs a step that the keeper takes with its lock.
func (k *keeper) locked(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// dropped drops one in the background.
func (k *keeper) dropped(x *keeping) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		k.drop(func(w *keeping) bool { return w.checkpoint == x.checkpoint })
	}()
	return done
}

func (k *keeper) nothingLeft(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.queue) + len(k.retries.outside.waiting) + len(k.retries.own.waiting); n != 0 {
		t.Errorf("%d are still to be written", n)
	}
	for _, l := range k.retries.lines() {
		if l.timer != nil {
			t.Error("a try is still to come")
		}
	}
}

// What fails while it is dropped does not wait to be tried again.
func TestDroppedWhileItFails(t *testing.T) {
	for _, why := range []error{errNoRoom, errOdd} {
		k, x := newIdleKeeper(t), newFailed()
		canceled := make(chan struct{})
		x.cancel = sync.OnceFunc(func() { close(canceled) })
		k.locked(func() { k.busy = x })
		done := k.dropped(x)
		<-canceled
		k.locked(func() { k.later(x, why) }) // it had failed before
		k.locked(func() {
			k.busy = nil
			k.arm()
			k.changed.Broadcast()
		})
		<-done
		k.locked(func() {
			for _, l := range k.retries.lines() { // what arm has set finds nothing
				l.stop()
				l.timer = nil
			}
		})
		k.nothingLeft(t)
	}
}

// What is about to be tried again is not queued behind the back of who drops it.
func TestDroppedWhileItIsAsked(t *testing.T) {
	k, x := newIdleKeeper(t), newFailed()
	k.locked(func() { k.retries.outside.asked = x })
	done := k.dropped(x)
	select {
	case <-done:
		t.Fatal("it is dropped, and queued afterwards")
	case <-time.After(50 * time.Millisecond): // a drop that does not wait has returned by then
	}
	released := make(chan struct{})
	k.add(nil, x.checkpoint, func() { close(released) })
	k.locked(func() {
		k.retries.outside.asked = nil
		k.changed.Broadcast()
	})
	<-done
	<-released
	k.nothingLeft(t)
}

// Another one's success says nothing about what failed for a reason of its own, and
// that is not tried for ever.
func TestUnexplainedFailuresHaveTheirOwnPause(t *testing.T) {
	k, room, odd, good := newIdleKeeper(t), newFailed(), newFailed(), newFailed()
	for i := range mostUnexplained {
		if !k.mayPass(odd.checkpoint, errOdd) {
			t.Fatalf("it is not tried again after %d failures", i+1)
		}
	}
	k.locked(func() {
		k.retries.own.pause = lastRetry / 2
		k.later(odd, errOdd)
		k.later(room, errNoRoom)
		k.arm()
		k.closed = true // what is due now is not to run
		k.written(good.checkpoint)
		if p := k.retries.own.pause; p != lastRetry {
			t.Errorf("after a success what failed for a reason of its own waits %s", p)
		}
		if p := k.retries.outside.pause; p != 0 {
			t.Errorf("after a success what had no room waits %s", p)
		}
	})
	if k.mayPass(odd.checkpoint, errOdd) {
		t.Error("it is tried for ever")
	}
	for range 2 * mostUnexplained {
		if !k.mayPass(room.checkpoint, errNoRoom) {
			t.Fatal("what had no room is given up")
		}
	}
}

// The disk is full until something is written, also while what waits for room is queued
// or tried, and is not when nothing waits.
func TestFullUntilSomethingIsWritten(t *testing.T) {
	k, x := newIdleKeeper(t), newFailed()
	full := func(where string, want bool) {
		t.Helper()
		if got := k.full(); (got != nil) != want {
			t.Errorf("%s: %v", where, got)
		}
	}
	full("at first", false)
	k.locked(func() { k.later(x, errNoRoom) })
	full("when it waits", true)
	k.locked(func() { k.retries.outside.waiting, k.retries.outside.asked = nil, x })
	full("when it is asked for", true)
	k.locked(func() { k.queue, k.retries.outside.asked = []*keeping{x}, nil })
	full("when it is queued", true)
	k.locked(func() { k.queue, k.busy = nil, x })
	full("when it is tried", true)
	k.locked(func() { k.busy = nil })
	full("when nothing is left", false)
	k.locked(func() { k.busy = x; k.written(x.checkpoint) })
	full("when it is written", false)
}
