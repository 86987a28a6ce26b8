package engine

import (
	"slices"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// evictor keeps what checkpoints cost in memory within a budget. Those used longest
// ago leave the memory, and are read from disk when they are used again; what is
// not durable is made so first. Their files stay in the pool. The one that a live sandbox stands
// at stays: it costs little, since the sandbox's own pages are the same, and is wanted next.
//
// Without a worker nothing can leave, and there is no budget.
//
// Its own lock is the innermost but that of the residents.
type evictor struct {
	engine *Engine
	limit  int64 // bytes
	all    residents

	mu      sync.Mutex
	changed *sync.Cond // of all below
	target  int64      // it is to come down to this
	wanted  bool       // to do so
	working bool
	closed  bool
	done    chan struct{}
}

// shareOfMachine is the part of the machine's memory that is the budget, if
// none is given.
const shareOfMachine = 4

func newEvictor(e *Engine, limit int64) *evictor {
	if limit <= 0 {
		limit = machineMemory().total / shareOfMachine
	}
	v := &evictor{engine: e, limit: limit, done: make(chan struct{})}
	v.changed = sync.NewCond(&v.mu)
	go v.run()
	return v
}

// arrived says that a checkpoint is in memory, and costs so much.
func (v *evictor) arrived(c *checkpoint, bytes int64) {
	v.all.add(c, bytes)
	if v.all.total() > v.limit {
		v.reduce(v.limit)
	}
}

// reduce has checkpoints leave until so many bytes are left.
func (v *evictor) reduce(target int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.wanted {
		target = min(target, v.target)
	}
	v.target, v.wanted = target, true
	v.changed.Broadcast()
}

// admit waits until there is room for another checkpoint: what is to leave may
// have to be written first, and the disk may be slower than the caller.
func (v *evictor) admit() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for !v.closed && (v.wanted || v.working) && v.all.total() > v.limit+v.limit/4 {
		v.changed.Wait()
	}
}

// wait waits until nothing is to leave.
func (v *evictor) wait() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for !v.closed && (v.wanted || v.working) {
		v.changed.Wait()
	}
}

func (v *evictor) close() {
	v.mu.Lock()
	v.closed = true
	v.changed.Broadcast()
	v.mu.Unlock()
	<-v.done
}

func (v *evictor) run() {
	defer close(v.done)
	for {
		v.mu.Lock()
		for !v.wanted && !v.closed {
			v.changed.Wait()
		}
		if v.closed {
			v.mu.Unlock()
			return
		}
		target := v.target
		v.wanted, v.working = false, true
		v.mu.Unlock()
		n := v.trim(target)
		v.mu.Lock()
		v.working = false
		v.changed.Broadcast()
		v.mu.Unlock()
		if n > 0 {
			v.engine.log.Debug("checkpoints have left the memory", "count", n, "bytes_left", v.all.total(), "budget", v.limit)
		}
	}
}

// How far the evictor goes: what nobody is likely to want first.
const (
	onlyIdle = iota // not those that a body stands ready of or was just made from
	allButAt        // not those that live sandboxes stand at
	passes
)

// trim has checkpoints leave until the target is reached or nothing can, and
// returns how many have.
func (v *evictor) trim(target int64) (n int) {
	for pass := range passes {
		for _, c := range v.all.all() {
			if v.all.total() <= target {
				return n
			}
			if v.over() {
				return n
			}
			if v.evict(c, pass) {
				n++
				v.mu.Lock()
				v.changed.Broadcast()
				v.mu.Unlock()
			}
		}
	}
	return n
}

func (v *evictor) over() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed
}

// evict has one checkpoint leave, if it may and can.
func (v *evictor) evict(c *checkpoint, pass int) bool {
	e, b := v.engine, c.owner
	n, release, err := b.tree.Use(c.id)
	if err != nil {
		return false
	}
	defer release()
	if n.Data != c || b.tree.At() == c.id && b.lives() || pass == onlyIdle && (c.shared() || e.standbys.wished(b, c.id)) {
		return false
	}
	if !v.keep(b, c) {
		return false
	}
	if pass > onlyIdle {
		e.standbys.drop(b, c.id)
	}
	return c.evict()
}

// keep makes sure that a checkpoint is durable.
func (v *evictor) keep(b *box, c *checkpoint) bool {
	switch c.described().Durable {
	case control.DurableYes:
		return true
	case control.DurableFailed: // it has been tried
		return false
	}
	done, err := v.engine.keep(b, c)
	if err != nil {
		return false
	}
	<-done
	return c.described().Durable == control.DurableYes
}

// lives reports whether the sandbox has a body, or may be getting one.
func (b *box) lives() bool {
	if !b.mu.TryRLock() {
		return true
	}
	defer b.mu.RUnlock()
	return b.body != nil
}

// shared reports whether bodies hold the checkpoint's zygotes as well, or it is in
// use: nothing is won by its leaving.
func (c *checkpoint) shared() bool {
	if !c.use.TryLock() {
		return true
	}
	defer c.use.Unlock()
	for _, z := range c.zygotes {
		if z.users.Load() > 1 {
			return true
		}
	}
	return false
}

// evict leaves the checkpoint on disk alone but for its files, if it is there and
// nobody uses it.
func (c *checkpoint) evict() bool {
	if c.described().Durable != control.DurableYes || !c.use.TryLock() {
		return false
	}
	defer c.use.Unlock()
	if c.tree == nil {
		return false
	}
	c.freeMemory()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Memory = control.MemoryNone
	return true
}

// wished reports whether bodies of a checkpoint are to stand ready.
func (s *standbys) wished(b *box, checkpoint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.wishes, func(w *wish) bool { return w.is(b, checkpoint) })
}

// checkBudget refuses a budget that nothing fits into.
func checkBudget(bytes int64) error {
	if bytes < 0 {
		return fault.New(fault.Invalid, "a budget of %d bytes for checkpoints", bytes)
	}
	return nil
}
