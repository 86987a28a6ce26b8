package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Forked is what a fork made.
type Forked struct {
	Checkpoint control.Checkpoint
	Sandboxes  []store.Sandbox
	Sessions   []SessionState // that go on in the copies, in their order
	ElapsedNS  []int64
	Reseeds    []Reseeded // of each copy, if they were reseeded
}

// ForkOptions say how copies are made.
type ForkOptions struct {
	Count int
	Names []string // none, or as many as Count
	// Reseed gives each an identity of its own; see reseed.
	Reseed        bool
	ReseedTimeout time.Duration // 0: DefaultReseedTimeout
}

// Fork makes new sandboxes from a source: a checkpoint, see resolve, or a
// sandbox, of which a checkpoint is taken first.
func (s *Sandboxes) Fork(ctx context.Context, source string, o ForkOptions) (Forked, error) {
	count, names := o.Count, o.Names
	switch {
	case o.ReseedTimeout < 0:
		return Forked{}, fault.New(fault.Invalid, "fork: a time limit of %s: negative", o.ReseedTimeout)
	case count < 1 || count > MaxFork:
		return Forked{}, fault.New(fault.Invalid, "fork into %d copies: 1 to %d are possible at once", count, MaxFork)
	case len(names) > 0 && len(names) != count:
		return Forked{}, fault.New(fault.Invalid, "fork: %d names for %d copies", len(names), count)
	}
	for _, n := range names {
		if err := checkName("sandbox", n); err != nil {
			return Forked{}, fmt.Errorf("fork: %w", err)
		}
	}
	b, c, err := s.forkSource(ctx, source)
	if err != nil {
		return Forked{}, fmt.Errorf("fork: %w", err)
	}
	f, err := s.fork(ctx, b, c, count, names)
	if err != nil {
		return Forked{}, fmt.Errorf("fork of checkpoint %q: %w", c.ID, err)
	}
	t, err := s.templateOf(ctx, b)
	if err == nil && (o.Reseed || t.Reseed) {
		f.Reseeds, err = s.reseedAll(ctx, t, f.Sandboxes, o.ReseedTimeout)
	}
	if err != nil {
		return Forked{}, fmt.Errorf("reseed copies of checkpoint %q, which stay: %w", c.ID, err)
	}
	return f, nil
}

// forkSource finds the checkpoint that is forked, or takes it.
func (s *Sandboxes) forkSource(ctx context.Context, source string) (*sandbox, store.Checkpoint, error) {
	b, err := s.find(ctx, source)
	if err == nil {
		c, err := s.Checkpoint(ctx, source, CheckpointOptions{})
		return b, store.Checkpoint{ID: c.ID, Sandbox: b.record().ID}, err
	}
	if !fault.Is(err, fault.NotFound) {
		return nil, store.Checkpoint{}, err
	}
	c, err := s.resolve(ctx, "", source)
	if fault.Is(err, fault.NotFound) {
		return nil, store.Checkpoint{}, fault.New(fault.NotFound, "%q is neither a sandbox nor a checkpoint", source).
			WithHint("sandtree tree shows both")
	}
	if err != nil {
		return nil, store.Checkpoint{}, err
	}
	b, err = s.find(ctx, c.Sandbox)
	return b, c, err
}

func (s *Sandboxes) fork(ctx context.Context, b *sandbox, c store.Checkpoint, count int, names []string) (f Forked, err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	client, err := s.reach(ctx, b)
	if err != nil {
		return f, err
	}
	src := b.record()
	req := control.ForkRequest{From: control.CheckpointRef{Sandbox: src.ID, Checkpoint: c.ID}}
	var copies []*sandbox
	added := false
	defer func() {
		for _, k := range copies {
			if err != nil && added {
				s.undo(k)
			}
			s.letGo(k)
			k.mu.Unlock()
		}
	}()
	b.recMu.Lock()
	fam := b.fam
	b.recMu.Unlock()
	for i := range count {
		rec := store.Sandbox{
			ID: id.NewSandbox(s.tag), Template: src.Template, Env: src.Env, Resources: src.Resources,
			State: store.Creating, Created: time.Now().UTC(), ForkedFrom: c.ID,
		}
		if len(names) > 0 {
			rec.Name = names[i]
		}
		rec.Hostname = hostname(rec)
		k := newSandbox(rec, fam)
		k.mu.Lock()
		k.hold() // until its sessions are known
		copies = append(copies, k)
		req.Sandboxes = append(req.Sandboxes, rec.ID)
		req.Hostnames = append(req.Hostnames, rec.Hostname)
	}
	if err := s.add(ctx, copies...); err != nil {
		return f, err
	}
	added = true
	r, files, err := client.Fork(ctx, req)
	defer func() { closeAll(files) }()
	if err != nil {
		return f, err
	}
	if len(r.Sandboxes) != count {
		return f, fault.New(fault.Internal, "the supervisor made %d copies of %d", len(r.Sandboxes), count)
	}
	f.ElapsedNS = r.ElapsedNS
	var sessions []adoption
	for i, k := range copies {
		n := r.Files[i]
		of, err := s.adopt(ctx, k, client, r.Sandboxes[i], files[:n])
		files = files[n:]
		sessions = append(sessions, of...)
		if err != nil {
			closeAdoptions(sessions)
			return f, fmt.Errorf("sessions of copy %d: %w", i+1, err)
		}
		k.change(func(rec *store.Sandbox) {
			rec.State, rec.At, rec.Generation = store.Running, r.Sandboxes[i].At, r.Sandboxes[i].Generation
			if h := r.Sandboxes[i].Hostname; h != "" {
				rec.Hostname = h
			}
		})
	}
	if err := s.settle(ctx, copies, sessions); err != nil {
		return f, err
	}
	for _, k := range copies {
		f.Sandboxes = append(f.Sandboxes, k.record())
	}
	for _, a := range sessions {
		f.Sessions = append(f.Sessions, State(a.session))
	}
	f.Checkpoint = r.Checkpoint
	return f, nil
}
