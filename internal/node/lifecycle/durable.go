package lifecycle

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// note keeps what a supervisor says of a checkpoint. News of its durability may
// come before the reply that it was taken.
func (s *Sandboxes) note(ctx context.Context, info control.Checkpoint) {
	s.noting.Lock()
	defer s.noting.Unlock()
	c, err := s.store.Checkpoint(ctx, info.ID)
	if err == nil {
		if c.Info.ID != "" && progress(c.Info.Durable) > progress(info.Durable) {
			info.Durable, info.DurableReason, info.DurableKind, info.DurableBytes = c.Info.Durable, c.Info.DurableReason, c.Info.DurableKind, c.Info.DurableBytes
		}
		c.Info = info
		err = s.store.UpdateCheckpoint(ctx, c)
	}
	if err != nil && !fault.Is(err, fault.NotFound) { // removed meanwhile
		s.log.Error("what a checkpoint is could not be stored", "checkpoint", info.ID, "error", err)
	}
}

func progress(durable string) int {
	switch durable {
	case control.DurablePending:
		return 1
	case control.DurableFailed: // and tried again
		return 2
	case control.DurableYes:
		return 3
	}
	return 0
}

// checkpointKept takes a supervisor's report.
func (s *Sandboxes) checkpointKept(c control.Checkpoint) {
	take := func() { s.note(context.Background(), c) }
	if !s.later(take) {
		take()
	}
}

// checkpointFailed takes a supervisor's report of a checkpoint that is not there
// any more.
func (s *Sandboxes) checkpointFailed(e control.CheckpointFailed) {
	take := func() {
		s.log.Error("a checkpoint that was taken has failed", "sandbox", e.Sandbox, "checkpoint", e.Checkpoint, "reason", e.Reason)
		s.mu.Lock()
		b := s.live[e.Sandbox]
		s.mu.Unlock()
		if b == nil {
			return
		}
		if err := s.dropCheckpoint(context.Background(), b, e.Checkpoint); err != nil && !fault.Is(err, fault.NotFound) {
			s.log.Error("a failed checkpoint is left in the store", "checkpoint", e.Checkpoint, "error", err)
		}
	}
	if !s.later(take) {
		take()
	}
}

// dropCheckpoint deletes the record of a checkpoint that is gone. Those below
// it are its parent's from then on, as in the supervisor's tree.
func (s *Sandboxes) dropCheckpoint(ctx context.Context, b *sandbox, id string) error {
	s.noting.Lock()
	defer s.noting.Unlock()
	gone, err := s.store.Checkpoint(ctx, id)
	if err != nil {
		return err
	}
	all, err := s.store.Checkpoints(ctx, gone.Sandbox)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Info.Parent != id {
			continue
		}
		c.Info.Parent = gone.Info.Parent
		if err := s.store.UpdateCheckpoint(ctx, c); err != nil {
			return err
		}
	}
	if b.record().At == id {
		if _, err := s.update(ctx, b, func(r *store.Sandbox) { r.At = gone.Info.Parent }); err != nil {
			return err
		}
	}
	return s.store.RemoveCheckpoint(ctx, id)
}

// agree makes the records of checkpoints agree with a supervisor's tree.
func (s *Sandboxes) agree(ctx context.Context, t control.TreeReply) error {
	s.noting.Lock()
	defer s.noting.Unlock()
	recs, err := s.store.Checkpoints(ctx, t.Sandbox)
	if err != nil {
		return err
	}
	there := map[string]control.Checkpoint{}
	for _, c := range t.Checkpoints {
		there[c.ID] = c
	}
	named := map[string]bool{}
	for _, r := range recs {
		named[r.ID] = true
		info, ok := there[r.ID]
		if !ok {
			if err := s.store.RemoveCheckpoint(ctx, r.ID); err != nil {
				return err
			}
			continue
		}
		r.Info = info
		if err := s.store.UpdateCheckpoint(ctx, r); err != nil {
			return err
		}
	}
	for _, c := range t.Checkpoints {
		if named[c.ID] || c.Sandbox != t.Sandbox {
			continue
		}
		if err := s.store.AddCheckpoint(ctx, store.Checkpoint{ID: c.ID, Sandbox: t.Sandbox, Name: c.Name, Created: c.Created, Info: c}); err != nil {
			return err
		}
	}
	return nil
}

// mayComeBack reports whether something of a sandbox is durable, or may be: only
// the next supervisor knows. A copy may come back at what it was forked from.
func (s *Sandboxes) mayComeBack(ctx context.Context, rec store.Sandbox) (bool, error) {
	if rec.ForkedFrom != "" {
		return true, nil
	}
	all, err := s.store.Checkpoints(ctx, rec.ID)
	for _, c := range all {
		if mayBeDurable(c.Info) {
			return true, err
		}
	}
	return false, err
}

// WaitCheckpoint waits until a checkpoint is finished, or durable; sandbox may be
// empty.
func (s *Sandboxes) WaitCheckpoint(ctx context.Context, sandbox, ref string, durable bool) (control.Checkpoint, error) {
	c, err := s.resolve(ctx, sandbox, ref)
	if err != nil {
		return control.Checkpoint{}, fmt.Errorf("wait for checkpoint: %w", err)
	}
	b, err := s.find(ctx, c.Sandbox)
	if err != nil {
		return control.Checkpoint{}, fmt.Errorf("wait for checkpoint: %w", err)
	}
	if b.asleep() && c.Info.Durable == control.DurableYes {
		return c.Info, nil
	}
	client, err := b.tree()
	if err != nil {
		return control.Checkpoint{}, fmt.Errorf("wait for checkpoint %q: %w", ref, err)
	}
	at := control.CheckpointRef{Sandbox: c.Sandbox, Checkpoint: c.ID}
	var info control.Checkpoint
	if durable {
		info, err = client.Kept(ctx, at)
	} else {
		info, err = client.Finished(ctx, at)
	}
	if err != nil {
		return control.Checkpoint{}, fmt.Errorf("wait for checkpoint %q: %w", ref, err)
	}
	s.note(ctx, info)
	if durable && info.Durable != control.DurableYes {
		kind := info.DurableKind
		if kind == "" { // of an older version
			kind = fault.Internal
		}
		return info, fault.New(kind, "checkpoint %q is not durable: %s", ref, info.DurableReason).
			WithHint("it is still in memory, and tried again when there may be room; sandtree checkpoint wait %s --durable tries now", c.ID)
	}
	return info, nil
}

// Verified is what a verification found.
type Verified struct {
	Checkpoints []string
	Problems    []control.Problem
}

// Verify reads durable checkpoints: one, or all of a sandbox if ref is empty.
func (s *Sandboxes) Verify(ctx context.Context, sandbox, ref string) (Verified, error) {
	client, ids, _, err := s.durableOf(ctx, sandbox, ref)
	if err != nil {
		return Verified{}, fmt.Errorf("verify: %w", err)
	}
	r, err := client.Verify(ctx, control.VerifyRequest{Checkpoints: ids})
	if err != nil {
		return Verified{}, fmt.Errorf("verify: %w", err)
	}
	return Verified{ids, r.Problems}, nil
}

// Export writes what a source names to a file, which stays the caller's: all
// durable checkpoints of a sandbox, or one.
func (s *Sandboxes) Export(ctx context.Context, source string, to *os.File) error {
	sandbox, ref := "", source
	if _, err := s.find(ctx, source); err == nil {
		sandbox, ref = source, ""
	} else if !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("export: %w", err)
	}
	client, ids, parents, err := s.durableOf(ctx, sandbox, ref)
	if sandbox == "" && fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "export: there is no sandbox or checkpoint %q", source).
			WithHint("sandtree ls shows the sandboxes, sandtree tree the checkpoints of one")
	}
	if err == nil {
		err = client.Export(ctx, control.ExportRequest{Checkpoints: ids, Parents: parents}, to)
	}
	if err != nil {
		return fmt.Errorf("export %q: %w", source, err)
	}
	return nil
}

// durableOf finds durable checkpoints, one or all of a sandbox if ref is empty,
// and reaches their supervisor. The parents of all, by id, are the nearest that are durable.
func (s *Sandboxes) durableOf(ctx context.Context, sandbox, ref string) (_ *control.Client, ids []string, parents map[string]string, _ error) {
	if ref != "" {
		c, err := s.resolve(ctx, sandbox, ref)
		if err != nil {
			return nil, nil, nil, err
		}
		sandbox, ids = c.Sandbox, []string{c.ID}
	}
	b, err := s.find(ctx, sandbox)
	if err != nil {
		return nil, nil, nil, err
	}
	b.mu.RLock()
	client, err := s.reach(ctx, b)
	b.mu.RUnlock()
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := client.Tree(ctx, b.record().ID)
	if err != nil {
		return nil, nil, nil, err
	}
	durable, above := map[string]bool{}, map[string]string{}
	for _, c := range t.Checkpoints {
		above[c.ID] = c.Parent
		if c.Durable != control.DurableYes {
			continue
		}
		durable[c.ID] = true
		if ref == "" {
			ids = append(ids, c.ID)
		}
	}
	parents = map[string]string{}
	for id := range durable {
		parents[id] = control.Nearest(above[id], above, func(id string) bool { return durable[id] })
	}
	if len(ids) == 0 {
		return nil, nil, nil, fault.New(fault.Conflict, "sandbox %q has no durable checkpoint", display(b.record())).
			WithHint("sandtree checkpoint --durable %s makes one", display(b.record()))
	}
	if !durable[ids[0]] {
		return nil, nil, nil, fault.New(fault.Conflict, "checkpoint %q is not durable", ref).
			WithHint("sandtree checkpoint wait %s --durable makes it so", ids[0])
	}
	return client, ids, parents, nil
}

// Import makes a sandbox, which stands still, of what Export wrote. The file stays
// the caller's.
func (s *Sandboxes) Import(ctx context.Context, template, name string, from *os.File) (Tree, error) {
	t, err := s.template(ctx, template)
	if err == nil && name != "" {
		err = checkName("sandbox", name)
	}
	if err != nil {
		return Tree{}, fmt.Errorf("import: %w", err)
	}
	rec := store.Sandbox{
		ID: id.NewSandbox(s.tag), Name: name, Template: t.ID, Env: t.Env, Resources: t.Resources,
		State: store.Creating, Created: time.Now().UTC(),
	}
	rec.Hostname = hostname(rec)
	b := newSandbox(rec, nil)
	b.mu.Lock() // nobody uses it before it is there
	defer b.mu.Unlock()
	if err := s.add(ctx, b); err != nil {
		return Tree{}, fmt.Errorf("import: %w", err)
	}
	tree, err := s.importInto(ctx, b, t, from)
	if err != nil {
		s.undo(b)
		return Tree{}, fmt.Errorf("import: %w", err)
	}
	return Tree{b.record(), tree}, nil
}

func (s *Sandboxes) importInto(ctx context.Context, b *sandbox, t store.Template, from *os.File) (control.TreeReply, error) {
	fam, err := s.families.ensure(ctx, t)
	if err != nil {
		return control.TreeReply{}, err
	}
	b.setFamily(fam)
	rec := b.record()
	tree, err := fam.client.Import(ctx, control.ImportRequest{CreateRequest: control.CreateRequest{
		Sandbox: rec.ID, Hostname: rec.Hostname, Resources: rec.Resources, Setuid: t.Setuid,
	}}, from)
	if err != nil {
		return control.TreeReply{}, err
	}
	if err := s.agree(ctx, tree); err != nil {
		return control.TreeReply{}, err
	}
	_, err = s.update(ctx, b, func(r *store.Sandbox) { r.State, r.At = store.Hibernated, tree.At })
	return tree, err
}
