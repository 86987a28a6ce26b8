package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tree"
)

// Create boots a sandbox without processes.
func (e *Engine) Create(_ context.Context, r control.CreateRequest) (control.Sandbox, error) {
	b, err := e.newBox(r.Sandbox, r.Hostname, r.Resources, r.Setuid)
	if err != nil {
		return control.Sandbox{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	upper := b.nextUpper()
	if err := e.family.store.CreateUpper(upper, b.quota); err != nil {
		return control.Sandbox{}, errors.Join(err, e.dropBox(b))
	}
	o, err := e.family.newBody(b, [2]time.Duration{})
	if err == nil {
		if err = o.attach(b, upper); err != nil {
			ctx, cancel := context.WithTimeout(context.Background(), endTime)
			defer cancel()
			err = errors.Join(err, o.close(ctx))
		}
	}
	if err != nil {
		return control.Sandbox{}, errors.Join(err, e.family.store.Remove(upper), e.dropBox(b))
	}
	b.body = o
	e.watch(b, o)
	return b.describe(), nil
}

// newBox makes the record of a sandbox, with a quota, and enters it.
func (e *Engine) newBox(id, hostname string, r control.Resources, setuid bool) (*box, error) {
	if id == "" {
		return nil, fault.New(fault.Invalid, "a sandbox without an id")
	}
	if _, err := limits(r); err != nil {
		return nil, err
	}
	b := &box{
		id: id, hostname: hostname, created: time.Now(), resources: r, setuid: setuid,
		tree: tree.New[*checkpoint](),
	}
	if err := e.enter(b); err != nil {
		return nil, err
	}
	q, err := e.family.store.NewQuota(r.DiskBytes)
	if err != nil && r.DiskBytes == 0 && fault.Is(err, fault.Unsupported) {
		err = nil // nothing is to be bounded: it goes uncounted
	}
	if err != nil {
		e.forget(b)
		return nil, err
	}
	b.quota = q
	return b, nil
}

// dropBox takes back newBox.
func (e *Engine) dropBox(b *box) error {
	b.removed = true
	e.forget(b)
	if b.quota == 0 {
		return nil
	}
	return e.family.store.DropQuota(b.quota)
}

// nextUpper is an id for files that was never used.
func (b *box) nextUpper() string { return fmt.Sprintf("%s_%d", b.id, b.uppers.Add(1)) }

// watch reports a body that ends though nobody ended it.
func (e *Engine) watch(b *box, o *body) {
	go func() {
		<-o.inc.Done()
		b.mu.Lock()
		ours := b.body == o && !b.removed
		if ours {
			b.body = nil
		}
		b.mu.Unlock()
		if !ours {
			return // replaced or removed: its end was wanted
		}
		reason := "its PID 1 has ended"
		if n, err := o.inc.Cgroup().OOMKills(); err == nil && n > 0 {
			reason = "out of memory"
		}
		e.endSessions(b, o, "sandbox ended")
		e.events.SandboxEnded(control.SandboxEnded{Sandbox: b.id, Reason: reason})
		e.retire(b, o)
	}()
}

// retire ends a body that is nobody's any more, in the background, and removes
// its files.
func (e *Engine) retire(b *box, o *body) {
	e.background(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		if err := o.closeBehind(ctx); err != nil {
			e.log.Error("end a body", "sandbox", b.id, "error", err)
		}
		if err := e.family.store.Remove(o.upper); err != nil {
			e.log.Error("remove a body's files", "sandbox", b.id, "error", err)
		}
	})
}

// endTime is how long a body may take to end.
const endTime = 30 * time.Second

// Remove ends a sandbox and forgets it and all its checkpoints. What was
// forked from it lives on.
func (e *Engine) Remove(ctx context.Context, r control.SandboxRequest) error {
	b, err := e.box(r.Sandbox)
	if err != nil {
		return err
	}
	// What is durable goes first: a removal that was cut off can be asked for
	// again.
	e.keeper.drop(func(x *keeping) bool { return x.box == b && !e.origins.held(x.checkpoint.id) })
	e.keeper.waitFor(b) // copies come back from those
	for _, n := range b.tree.Nodes() {
		if err := e.forgetDurable(ctx, n.Data); err != nil {
			return err
		}
	}
	if err := e.end(ctx, b); err != nil {
		return err
	}
	e.disown(context.WithoutCancel(ctx), b.origin)
	return nil
}

// end ends a sandbox with all that is in memory and in the pool. What is durable
// stays.
func (e *Engine) end(ctx context.Context, b *box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removed {
		return fault.New(fault.NotFound, "no sandbox %q", b.id)
	}
	o := b.body
	b.removed, b.body = true, nil
	e.forget(b)
	e.standbys.drop(b, "")
	var errs []error
	if o != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		errs = append(errs, o.close(ctx), e.family.store.Remove(o.upper))
	}
	b.sessions.closeAll()
	b.tree.Clear()
	e.standbys.drop(b, "") // a checkpoint that was finished meanwhile has asked for one
	if b.quota != 0 {
		errs = append(errs, e.family.store.DropQuota(b.quota))
	}
	return errors.Join(errs...)
}

// List is everything that a new node must know.
func (e *Engine) List(context.Context) (control.ListReply, error) {
	e.mu.Lock()
	boxes := make([]*box, 0, len(e.boxes))
	for _, b := range e.boxes {
		boxes = append(boxes, b)
	}
	e.mu.Unlock()
	var out control.ListReply
	for _, b := range boxes {
		b.mu.RLock()
		if !b.removed {
			out.Sandboxes = append(out.Sandboxes, b.describe())
		}
		b.mu.RUnlock()
	}
	return out, nil
}
