package lifecycle

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Stats returns a sandbox's figures of this moment and its state. One that stands
// still goes on doing so: what no supervisor knows of it comes from the records,
// and its disk is what its checkpoints have added to it.
func (s *Sandboxes) Stats(ctx context.Context, ref string) (control.Stats, store.State, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return control.Stats{}, "", fmt.Errorf("stats: %w", err)
	}
	b.awaitReport(ctx)
	b.mu.RLock()
	defer b.mu.RUnlock()
	rec := b.record()
	if asleep(rec.State) {
		st, err := s.statsAsleep(ctx, b, rec)
		return st, rec.State, err
	}
	c, err := b.usable()
	if err != nil {
		return control.Stats{}, "", fmt.Errorf("stats: %w", err)
	}
	st, err := c.Stats(ctx, rec.ID)
	if err != nil {
		return st, "", fmt.Errorf("stats: %w", err)
	}
	return st, rec.State, nil
}

func (s *Sandboxes) statsAsleep(ctx context.Context, b *sandbox, rec store.Sandbox) (control.Stats, error) {
	b.recMu.Lock()
	fam := b.fam
	b.recMu.Unlock()
	if fam != nil {
		st, err := fam.client.Stats(ctx, rec.ID)
		if err == nil {
			return st, nil
		}
		if !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable) {
			return st, fmt.Errorf("stats: %w", err)
		}
	}
	all, err := s.store.Checkpoints(ctx, rec.ID)
	if err != nil {
		return control.Stats{}, fmt.Errorf("stats: %w", err)
	}
	st := control.Stats{
		Sandbox: rec.ID, MemoryMaxBytes: rec.Resources.MemoryBytes, PIDsMax: rec.Resources.PIDs, DiskMaxBytes: rec.Resources.DiskBytes,
		Checkpoints: len(all),
	}
	for _, c := range all {
		st.CheckpointBytes += c.Info.DirtyBytes
		st.DiskBytes += c.Info.DurableBytes
	}
	return st, nil
}
