package engine

import (
	"github.com/sandtree/sandtree/internal/process/memory"
)

// base is a zygote that follows a lineage of a live tree, from checkpoint to
// checkpoint.
type base struct {
	*memory.Zygote
	// at is the zygote that was forked from it last, and that holds what it
	// holds; nil: none does.
	at *sharedZygote
}

// mostGenerations bounds how many forks of forks a line of zygotes may be. A
// rollback makes two more: the base is a fork of the target's zygote, and the
// next checkpoint's of that. Beyond it, the base that there is goes to where the
// target is, page by page, so that the depth of a tree costs nothing.
const mostGenerations = 8

// base is the zygote that follows a lineage of the live tree.
func (o *body) base(key int) (*base, error) {
	o.zygotes.Lock()
	b, a, left := o.bases[key], o.ancestors[key], o.left[key]
	delete(o.ancestors, key)
	delete(o.left, key)
	o.zygotes.Unlock()
	if b != nil {
		return b, nil
	}
	b, err := o.makeBase(key, a, left)
	if err != nil {
		return nil, err
	}
	o.zygotes.Lock()
	defer o.zygotes.Unlock()
	o.bases[key] = b
	return b, nil
}

// makeBase makes a base that holds what a does, the zygote that the body was made
// from; nil: it is empty. left is that of the body before, or nil. It takes over
// both.
func (o *body) makeBase(key int, a *sharedZygote, left *base) (*base, error) {
	if a == nil {
		left.kill()
		z, err := memory.NewZygote(o.family.seed.Server())
		return &base{Zygote: z}, err
	}
	if now := o.origin.zygoteOf(key); now != nil { // perhaps another than it was
		a.release()
		a = now
	}
	defer a.release()
	if left != nil && left.at == a {
		return left, nil
	}
	if a.Generation() < mostGenerations || left == nil && !machineMemory().toSpare() {
		left.kill()
		z, err := a.Fork()
		return &base{Zygote: z}, err
	}
	b := left
	if b == nil { // all pages are copied
		z, err := memory.NewZygote(o.family.seed.Server())
		if err != nil {
			return nil, err
		}
		b = &base{Zygote: z}
	}
	b.at = nil
	if _, err := b.Follow(a.Zygote); err != nil {
		b.kill()
		o.family.log.Warn("a base could not go to a checkpoint, and becomes a fork of it", "checkpoint", o.origin.id, "error", err)
		z, err := a.Fork()
		return &base{Zygote: z}, err
	}
	// The checkpoint gets a fork of it: next time what was copied is shared.
	if z, err := b.Fork(); err == nil {
		b.at = share(z)
		if !o.origin.replace(key, a, b.at) {
			b.at.release()
			b.at = nil
		}
	}
	return b, nil
}

func (b *base) kill() {
	if b != nil {
		b.Kill()
	}
}

// succeed makes the body the one that takes over the bases of another one, which
// it takes the place of. The caller holds the box's lock.
func (o *body) succeed(old *body) {
	if old == nil {
		return
	}
	if old.finishing.last == nil && old.before != nil { // it has no bases of its own yet
		o.before, old.before = old.before, nil
		return
	}
	old.succeeded = true
	o.before = old
}

// takeOver takes over the bases of the body before, once that one's checkpoints
// are finished.
func (o *body) takeOver() {
	if old := o.before; old != nil {
		old.finishing.wait()
		o.left, old.bases = old.bases, map[int]*base{}
		o.before = nil
	}
}

// dropBases forgets the bases after a checkpoint that failed with them half
// updated: the next one is a full one.
func (o *body) dropBases() {
	for key, z := range o.bases {
		z.Kill()
		delete(o.bases, key)
	}
	o.dropAncestors(nil)
}

// dropAncestors forgets what bases are made from, of all lineages but some.
func (o *body) dropAncestors(but map[int]bool) {
	for key, z := range o.left {
		if !but[key] {
			z.Kill()
			delete(o.left, key)
		}
	}
	for key, z := range o.ancestors {
		if !but[key] {
			z.release()
			delete(o.ancestors, key)
		}
	}
}
