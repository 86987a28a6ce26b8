package engine

import (
	"slices"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// evictor keeps what checkpoints cost in memory within a budget, that of all families
// together: they tell each other in a ledger. Those used longest ago leave the memory, of
// whichever family, and are read from disk when they are used again; what is
// not durable is made so first. Their files stay in the pool. The one that a live sandbox stands
// at stays: it costs little, since the sandbox's own pages are the same, and is wanted next.
//
// Without a worker nothing can leave, and there is no budget.
//
// Its own lock is the innermost but that of the residents.
type evictor struct {
	engine *Engine
	limit  int64 // bytes, of all families
	ledger *control.Ledger
	all    residents

	mu      sync.Mutex
	changed *sync.Cond // of all below, and of the ledger
	target  int64      // this family is to come down to this
	wanted  bool       // to do so
	shared  bool       // all families take more than the limit
	working bool
	closed  bool
	done    sync.WaitGroup
}

// shareOfMachine is the part of the machine's memory that is the budget, if
// none is given.
const shareOfMachine = 4

// newEvictor makes one that does nothing before start.
func newEvictor(e *Engine, cfg control.Config) (_ *evictor, err error) {
	v := &evictor{engine: e, limit: cfg.CheckpointMemory, ledger: cfg.Ledger}
	if v.limit <= 0 {
		v.limit = machineMemory().total / shareOfMachine
	}
	if v.ledger == nil { // it is the only family
		if v.ledger, err = control.NewLedger(); err != nil {
			return nil, err
		}
	}
	if v.all.account, err = v.ledger.Account(cfg.Row); err != nil {
		v.ledger.Close()
		return nil, err
	}
	v.changed = sync.NewCond(&v.mu)
	return v, nil
}

func (v *evictor) start() {
	v.done.Go(v.run)
	v.done.Go(v.listen)
}

// arrived says that a checkpoint is in memory, and costs so much.
func (v *evictor) arrived(c *checkpoint, bytes int64) {
	v.all.add(c, bytes)
	if v.exceeded() {
		v.share()
		v.ledger.Call()
	}
}

// exceeded reports whether all families take more than they may.
func (v *evictor) exceeded() bool { return v.ledger.Total() > v.limit }

// share has this family give something up, if it is its turn.
func (v *evictor) share() {
	if !v.all.account.Turn() {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shared = true
	v.all.account.SetBusy(true)
	v.changed.Broadcast()
}

// listen hears from other families: of what they take, and that they have given
// something up.
func (v *evictor) listen() {
	for {
		n := v.ledger.Changes()
		if v.over() {
			return
		}
		if v.exceeded() {
			v.share()
		}
		v.mu.Lock()
		v.changed.Broadcast()
		v.mu.Unlock()
		v.ledger.Await(n)
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
// have to be written first, and the disk may be slower than the caller. If it is
// full nothing can leave, and there is no room.
func (v *evictor) admit() error {
	if !v.await() {
		return nil
	}
	full := v.engine.keeper.full()
	if full == nil {
		return nil
	}
	return fault.New(fault.Exhausted, "checkpoints take %d MiB of memory of %d MiB, and cannot leave it: %w", v.ledger.Total()>>20, v.limit>>20, full)
}

// await waits while something is to leave and there is too much, and reports
// whether there still is.
func (v *evictor) await() (tooMuch bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	tooMuch = v.ledger.Total() > v.limit+v.limit/4
	for tooMuch && !v.closed && (v.busy() || v.ledger.Busy()) {
		v.changed.Wait()
		tooMuch = v.ledger.Total() > v.limit+v.limit/4
	}
	return tooMuch && !v.closed
}

// mayLeaveNow says that a checkpoint which could not leave the memory is durable now.
func (v *evictor) mayLeaveNow() {
	if v.exceeded() {
		v.share()
	}
}

// busy reports whether something is to leave, or is leaving. v.mu is held.
func (v *evictor) busy() bool { return v.wanted || v.shared || v.working }

// wait waits until nothing is to leave.
func (v *evictor) wait() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for !v.closed && v.busy() {
		v.changed.Wait()
	}
}

func (v *evictor) close() {
	v.mu.Lock()
	v.closed = true
	v.changed.Broadcast()
	v.mu.Unlock()
	v.ledger.Call()
	v.done.Wait()
}

// free lets go of the ledger, when no checkpoint is in memory any more.
func (v *evictor) free() {
	v.all.account.Clear()
	v.ledger.Close()
}

func (v *evictor) run() {
	for {
		v.mu.Lock()
		for !v.wanted && !v.shared && !v.closed {
			v.changed.Wait()
		}
		if v.closed {
			v.mu.Unlock()
			return
		}
		target, own, shared := v.target, v.wanted, v.shared
		v.wanted, v.shared, v.working = false, false, true
		v.mu.Unlock()
		n := 0
		if own {
			n += v.trim(func(*checkpoint) bool { return v.all.total() > target })
		}
		if shared {
			n += v.giveUp()
		}
		v.mu.Lock()
		v.working = false
		if !v.busy() {
			v.all.account.SetBusy(false)
		}
		v.changed.Broadcast()
		v.mu.Unlock()
		if n > 0 || v.exceeded() { // others wait for that, or it is their turn
			v.ledger.Call()
		}
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

// giveUp has checkpoints leave while all families together take too much, as long
// as no other family has one that was used longer ago. It returns how many have left.
func (v *evictor) giveUp() (n int) {
	others := false
	n = v.trim(func(c *checkpoint) bool {
		used, ok := v.all.lastUse(c)
		if !v.exceeded() || others {
			return false
		}
		if ok {
			v.all.account.SetOldest(used)
			others = !v.all.account.Oldest(used)
		}
		return !others
	})
	if v.exceeded() && !others { // nothing more can leave here, until something is used
		v.all.account.SetOldest(control.Never)
	}
	return n
}

// trim has checkpoints leave that may, those used longest ago first, until more is
// false for the next or nothing can, and returns how many have.
func (v *evictor) trim(more func(next *checkpoint) bool) (n int) {
	for pass := range passes {
		for _, c := range v.all.all() {
			release, may := v.mayLeave(c, pass)
			if !may {
				continue
			}
			if v.over() || !more(c) {
				release()
				return n
			}
			if v.evict(c, pass) {
				n++
				v.mu.Lock()
				v.changed.Broadcast()
				v.mu.Unlock()
			}
			release()
		}
	}
	return n
}

func (v *evictor) over() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.closed
}

// mayLeave reports whether a checkpoint may leave in a pass. If so, it stays in its
// tree until release is called.
func (v *evictor) mayLeave(c *checkpoint, pass int) (release func(), may bool) {
	b := c.owner
	n, release, err := b.tree.Use(c.id)
	if err != nil {
		return nil, false
	}
	if n.Data != c || b.tree.At() == c.id && b.lives() || pass == onlyIdle && (c.shared() || v.engine.standbys.wished(b, c.id)) {
		release()
		return nil, false
	}
	return release, true
}

// evict has one checkpoint leave that may, if it can.
func (v *evictor) evict(c *checkpoint, pass int) bool {
	if !v.keep(c.owner, c) {
		return false
	}
	if pass > onlyIdle {
		v.engine.standbys.drop(c.owner, c.id)
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
