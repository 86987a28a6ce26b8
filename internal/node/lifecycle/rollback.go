package lifecycle

import (
	"context"
	"fmt"
	"os"

	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Rolled is a sandbox after a rollback.
type Rolled struct {
	Sandbox    store.Sandbox
	Checkpoint string
	ElapsedNS  int64
	StageNS    map[string]int64
}

// Rollback makes a sandbox what it was at one of its checkpoints.
func (s *Sandboxes) Rollback(ctx context.Context, ref, checkpoint string) (Rolled, error) {
	b, err := s.find(ctx, ref)
	if err != nil {
		return Rolled{}, fmt.Errorf("rollback: %w", err)
	}
	b.mu.Lock()
	r, write, err := s.rollback(ctx, b, checkpoint)
	if write == nil {
		b.mu.Unlock()
	} else {
		// Who waits for the first reply does not wait for the disk; whoever wants
		// to change the sandbox does.
		s.afterwards(func() {
			defer b.mu.Unlock()
			if err := write(); err != nil {
				s.log.Error("a rollback could not be recorded", "sandbox", b.rec.ID, "error", err)
			}
		})
	}
	return r, err
}

// rollback does so; b.mu is held exclusively, also while what it returns is
// called, if that is not nil: it writes what the store is to know.
func (s *Sandboxes) rollback(ctx context.Context, b *sandbox, checkpoint string) (_ Rolled, write func() error, err error) {
	rec := b.record()
	c, err := s.resolve(ctx, rec.ID, checkpoint)
	if err != nil {
		return Rolled{}, nil, fmt.Errorf("rollback of sandbox %q: %w", display(rec), err)
	}
	client, err := s.reach(ctx, b)
	if err != nil {
		return Rolled{}, nil, fmt.Errorf("rollback of sandbox %q: %w", display(rec), err)
	}
	b.hold()
	defer s.letGo(b)
	// A client that goes away must not leave it half done.
	r, files, err := client.Rollback(context.WithoutCancel(ctx), control.CheckpointRef{Sandbox: rec.ID, Checkpoint: c.ID})
	if err != nil {
		return Rolled{}, nil, fmt.Errorf("rollback of sandbox %q to checkpoint %q: %w", display(rec), checkpoint, err)
	}
	write, err = s.reborn(ctx, b, client, r.Sandbox, c.ID, c.ID, files)
	if err != nil {
		err = fmt.Errorf("rollback of sandbox %q to checkpoint %q: sessions: %w", display(rec), checkpoint, err)
	}
	return Rolled{Sandbox: b.record(), Checkpoint: c.ID, ElapsedNS: r.ElapsedNS, StageNS: r.StageNS}, write, err
}

// hold makes reports of ended sessions wait for letGo.
func (b *sandbox) hold() {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	b.rolling = true
}

func (s *Sandboxes) letGo(b *sandbox) {
	b.recMu.Lock()
	b.rolling = false
	waiting := b.ended
	b.ended = nil
	b.recMu.Unlock()
	for _, e := range waiting {
		s.endSession(e)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
