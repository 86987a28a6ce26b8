package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// blanks makes bodies that have no root yet, some of them ahead: those stand
// ready in namespaces and a cgroup of their own. That is only a matter of speed.
type blanks struct {
	seed   *sandbox.Seed
	parent *cgroup.Parent
	walls  *confine.Walls // of those that are made ahead
	log    *slog.Logger

	made atomic.Int64 // groups so far: their names are never used again

	mu     sync.Mutex
	closed bool
	failed bool // the last that was tried
	ready  []*sandbox.Blank
	change *sync.Cond // of closed, failed and ready
	wake   chan struct{}
	done   chan struct{}
	ending sync.WaitGroup
}

// keepBlanks is how many stand ready: what a create or two need at once. One
// costs the kernel some 300 KiB.
const keepBlanks = 2

func newBlanks(seed *sandbox.Seed, parent *cgroup.Parent, walls *confine.Walls, log *slog.Logger) *blanks {
	b := &blanks{seed: seed, parent: parent, walls: walls, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	b.change = sync.NewCond(&b.mu)
	b.wake <- struct{}{}
	go b.run()
	return b
}

// get returns a body without a root, with limits: one that stands ready, if one is
// there that will do, else a new one.
func (b *blanks) get(walls *confine.Walls, l cgroup.Limits) (*sandbox.Blank, error) {
	if blank := b.take(walls); blank != nil {
		if blank.Cgroup().SetLimits(l) == nil {
			return blank, nil
		}
		// Of a controller that a group joins when it is made, or not at all.
		b.ending.Go(func() { _ = b.end(blank) })
	}
	group, err := b.group(l)
	if err != nil {
		return nil, err
	}
	return b.seed.Prepare(group, walls)
}

// group makes the cgroup of a body.
func (b *blanks) group(l cgroup.Limits) (*cgroup.Group, error) {
	group, err := b.parent.NewGroup(fmt.Sprintf("body-%d", b.made.Add(1)), l)
	if err != nil {
		return nil, err
	}
	// A second wall: a kernel that has it not is no reason to refuse.
	if err := group.RestrictDevices(); err != nil && !fault.Is(err, fault.Unsupported) {
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		err = errors.Join(err, group.Remove(ctx))
		group.Close()
		return nil, err
	}
	return group, nil
}

// take returns a blank with the given walls, or nil.
func (b *blanks) take(walls *confine.Walls) *sandbox.Blank {
	if walls != b.walls {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ready) > 0 {
		blank := b.ready[0]
		b.ready, b.failed = b.ready[1:], false
		b.poke()
		select {
		case <-blank.Done(): // killed while it stood
			b.ending.Go(func() { _ = b.end(blank) })
		default:
			return blank
		}
	}
	return nil
}

// poke wakes the builder. mu is held.
func (b *blanks) poke() {
	if b.closed {
		return
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// run makes what is missing.
func (b *blanks) run() {
	defer close(b.done)
	// Never unlocked: the thread and its priority end with the goroutine.
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowest)
	for range b.wake {
		time.Sleep(settleTime)
		for b.step() {
		}
	}
}

// step makes one. One that cannot be made is tried again when the next is taken.
func (b *blanks) step() bool {
	b.mu.Lock()
	enough := b.closed || len(b.ready) >= keepBlanks
	b.mu.Unlock()
	if enough {
		return false
	}
	blank, err := b.prepare()
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.change.Broadcast()
	b.failed = err != nil
	if err != nil {
		b.log.Debug("no blank body", "error", err)
		return false
	}
	b.ready = append(b.ready, blank)
	return true
}

func (b *blanks) prepare() (*sandbox.Blank, error) {
	if !machineMemory().toSpare() {
		return nil, fault.New(fault.Exhausted, "memory is short")
	}
	group, err := b.group(cgroup.Limits{})
	if err != nil {
		return nil, err
	}
	return b.seed.Prepare(group, b.walls)
}

// wait waits until as many stand ready as are kept.
func (b *blanks) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.closed && !b.failed && len(b.ready) < keepBlanks {
		b.change.Wait()
	}
}

// shed ends those that stand ready, because memory is short.
func (b *blanks) shed() {
	b.mu.Lock()
	gone := b.ready
	b.ready, b.failed = nil, true
	b.change.Broadcast()
	b.mu.Unlock()
	for _, blank := range gone {
		if err := b.end(blank); err != nil {
			b.log.Error("end a blank body", "error", err)
		}
	}
}

func (b *blanks) end(blank *sandbox.Blank) error {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	return blank.Close(ctx)
}

func (b *blanks) close() {
	b.mu.Lock()
	b.closed = true
	b.change.Broadcast()
	close(b.wake)
	b.mu.Unlock()
	<-b.done
	b.shed()
	b.ending.Wait()
}
