package engine

import (
	"errors"
	"sync"
	"testing"

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

