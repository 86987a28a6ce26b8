package engine

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tree"
)

// Fork makes sandboxes from a checkpoint. Either all are made or none.
func (e *Engine) Fork(ctx context.Context, r control.ForkRequest) (control.ForkReply, []*os.File, error) {
	from, err := e.box(r.From.Sandbox)
	if err != nil {
		return control.ForkReply{}, nil, err
	}
	if len(r.Hostnames) != len(r.Sandboxes) || len(r.Sandboxes) == 0 {
		return control.ForkReply{}, nil, fault.New(fault.Invalid, "%d sandboxes with %d hostnames", len(r.Sandboxes), len(r.Hostnames))
	}
	n, release, err := from.tree.Use(r.From.Checkpoint)
	if err != nil {
		return control.ForkReply{}, nil, err
	}
	defer release()
	if err := n.Data.acquire(ctx); err != nil {
		return control.ForkReply{}, nil, err
	}
	defer n.Data.release()
	defer e.standbys.engage()()
	source := tree.Node[*checkpoint]{ID: n.ID, Name: n.Name, Parent: from.tree.Parent(n.ID), Data: n.Data}
	out := control.ForkReply{Checkpoint: describe(source), Sandboxes: make([]control.Sandbox, len(r.Sandboxes)), ElapsedNS: make([]int64, len(r.Sandboxes))}
	errs := make([]error, len(r.Sandboxes))
	files := make([][]*os.File, len(r.Sandboxes))
	room := atomic.Int64{}
	room.Store(control.MaxForkFiles)
	var wg sync.WaitGroup
	turns := make(chan struct{}, runtime.NumCPU()) // more at once would only wait for each other
	for i, id := range r.Sandboxes {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			begin := time.Now()
			out.Sandboxes[i], files[i], errs[i] = e.forkOne(from, n.ID, n.Data, id, r.Hostnames[i], r.Resources)
			if room.Add(-int64(len(files[i]))) < 0 { // the node fetches them
				closeFiles(files[i])
				files[i] = nil
			}
			out.ElapsedNS[i] = time.Since(begin).Nanoseconds()
		})
	}
	wg.Wait()
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		for _, fs := range files {
			out.Files = append(out.Files, len(fs))
		}
		return out, slices.Concat(files...), nil
	}
	closeFiles(slices.Concat(files...))
	err = fault.New(fault.KindOf(errs[i]), "fork checkpoint %s: %w", r.From.Checkpoint, errs[i])
	for k, id := range r.Sandboxes {
		if errs[k] == nil {
			err = errors.Join(err, e.Remove(ctx, control.SandboxRequest{Sandbox: id}))
		}
	}
	return control.ForkReply{}, nil, err
}

// forkOne makes one copy, from a standby if one is ready. Without resources it has
// those of the checkpoint.
func (e *Engine) forkOne(from *box, checkpointID string, c *checkpoint, id, hostname string, own *control.Resources) (control.Sandbox, []*os.File, error) {
	if hostname == "" {
		hostname = c.hostname
	}
	r := c.resources
	if own != nil {
		r = *own
	}
	b, err := e.newBox(id, hostname, r, c.setuid)
	if err != nil {
		return control.Sandbox{}, nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.origins.hold(c.id)
	b.origin = c.id
	var next *reborn
	if sameBody(r, c.resources) {
		next = e.standbys.take(from, checkpointID)
	}
	if next != nil {
		if err := next.give(b); err != nil {
			e.log.Warn("a standby could not be used for a fork", "checkpoint", checkpointID, "error", err)
			e.abandon(next)
			next = nil
		}
	}
	if next == nil {
		next, err = e.restore(b, c, newStages(), nil)
	}
	if err == nil {
		if err = next.release(); err != nil {
			next.abandon()
			err = errors.Join(err, e.family.store.Remove(next.body.upper))
		}
	}
	if err != nil {
		err = errors.Join(err, e.dropBox(b))
		e.disown(context.Background(), b.origin)
		return control.Sandbox{}, nil, err
	}
	b.body = next.body
	live, files, err := e.install(b, next)
	e.watch(b, next.body)
	return b.describeReborn(live), files, err
}

// sameBody reports whether bodies with these limits are alike: the disk's is the
// sandbox's own.
func sameBody(a, b control.Resources) bool {
	a.DiskBytes, b.DiskBytes = 0, 0
	return a == b
}

// give makes a body that was built for another sandbox of the same checkpoint
// one of b's. Its limits are those of the checkpoint, and so are b's; see [sameBody].
func (r *reborn) give(b *box) error {
	if err := r.body.inc.SetHostname(b.hostname); err != nil {
		return err
	}
	if err := r.body.family.store.Recount(r.body.upper, b.quota); err != nil {
		return err
	}
	for _, s := range r.sessions {
		s.Sandbox = b.id
	}
	return nil
}
