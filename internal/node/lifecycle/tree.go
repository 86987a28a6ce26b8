package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// tree returns the supervisor of a sandbox whose checkpoints are there, even
// if its body is not.
func (b *sandbox) tree() (*control.Client, error) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	switch {
	case b.gone, b.rec.State == store.Removing:
		return nil, fault.New(fault.NotFound, "sandbox %q was removed", display(b.rec))
	case b.fam == nil && b.rec.State == store.Lost:
		return nil, lostError(b.rec, false)
	case b.fam == nil:
		return nil, fault.New(fault.Unavailable, "sandbox %q has no supervisor", display(b.rec))
	}
	return b.fam.client, nil
}

// Tree is a sandbox's checkpoint tree.
type Tree struct {
	Sandbox store.Sandbox
	control.TreeReply
}

// Tree returns a sandbox's checkpoint tree.
func (s *Sandboxes) Tree(ctx context.Context, ref string) (Tree, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return Tree{}, fmt.Errorf("tree: %w", err)
	}
	return s.treeOf(ctx, b)
}

func (s *Sandboxes) treeOf(ctx context.Context, b *sandbox) (Tree, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	rec := b.record()
	b.recMu.Lock()
	onDisk := b.fam == nil && asleep(b.rec.State)
	b.recMu.Unlock()
	if onDisk {
		return s.treeOnDisk(ctx, rec)
	}
	client, err := b.tree()
	if err != nil {
		return Tree{Sandbox: rec}, fmt.Errorf("tree of sandbox %q: %w", display(rec), err)
	}
	r, err := client.Tree(ctx, rec.ID)
	if err != nil {
		return Tree{Sandbox: rec}, fmt.Errorf("tree of sandbox %q: %w", display(rec), err)
	}
	return Tree{rec, r}, nil
}

// treeOnDisk is the tree of a sandbox that no supervisor knows at the moment. It stands
// where it will come back: at the nearest checkpoint above that is durable.
func (s *Sandboxes) treeOnDisk(ctx context.Context, rec store.Sandbox) (Tree, error) {
	t := Tree{rec, control.TreeReply{Sandbox: rec.ID, Checkpoints: []control.Checkpoint{}}}
	all, err := s.store.Checkpoints(ctx, rec.ID)
	parents, durable := map[string]string{}, map[string]bool{}
	for _, c := range all {
		parents[c.ID], durable[c.ID] = c.Info.Parent, c.Info.Durable == control.DurableYes
	}
	nearest := func(id string) string {
		return control.Nearest(id, parents, func(id string) bool { return durable[id] })
	}
	for _, c := range all {
		if durable[c.ID] {
			c.Info.Name, c.Info.Memory, c.Info.Parent = c.Name, control.MemoryNone, nearest(c.Info.Parent)
			t.Checkpoints = append(t.Checkpoints, c.Info)
		}
	}
	t.At = nearest(rec.At)
	return t, err
}

// Trees returns the trees of all sandboxes; a lost one's is empty.
func (s *Sandboxes) Trees(ctx context.Context) ([]Tree, error) {
	recs, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []Tree
	for _, rec := range recs {
		b, err := s.find(ctx, rec.ID)
		if fault.Is(err, fault.NotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		t, err := s.treeOf(ctx, b)
		switch {
		case fault.Is(err, fault.NotFound):
			continue
		case err != nil && !fault.Is(err, fault.Lost) && !fault.Is(err, fault.Unavailable):
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}
