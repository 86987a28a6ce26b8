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

// CheckpointOptions say how a checkpoint is taken.
type CheckpointOptions struct {
	Name  string // may be empty
	Async bool   // return when the processes run again
	// Keep is what is to be durable: in the background unless it says otherwise.
	Keep Keep
	// Explain asks for the items of what is returned.
	Explain bool
}

// Keep says whether a checkpoint is to be durable.
type Keep int

// What is to be durable.
const (
	KeepLater Keep = iota // in the background
	KeepNot
	KeepNow // before the call returns
)

// Checkpoint takes a checkpoint of a sandbox.
func (s *Sandboxes) Checkpoint(ctx context.Context, ref string, o CheckpointOptions) (control.Checkpoint, error) {
	if o.Name != "" {
		if err := checkName("checkpoint", o.Name); err != nil {
			return control.Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
		}
	}
	b, err := s.find(ctx, ref)
	if err != nil {
		return control.Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	if err := s.awake(ctx, b, &b.mu); err != nil {
		return control.Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
	}
	c, err := s.checkpointLocked(ctx, b, o)
	if err != nil {
		return control.Checkpoint{}, fmt.Errorf("checkpoint of sandbox %q: %w", display(b.record()), err)
	}
	if o.Keep == KeepNow {
		return s.WaitCheckpoint(ctx, c.Sandbox, c.ID, true)
	}
	return c, nil
}

// checkpointLocked takes a checkpoint and gives b.mu back, which is held
// exclusively.
func (s *Sandboxes) checkpointLocked(ctx context.Context, b *sandbox, o CheckpointOptions) (control.Checkpoint, error) {
	defer b.mu.Unlock()
	return s.checkpoint(ctx, b, o)
}

// checkpoint takes a checkpoint. b.mu is held exclusively.
func (s *Sandboxes) checkpoint(ctx context.Context, b *sandbox, o CheckpointOptions) (control.Checkpoint, error) {
	client, err := b.usable()
	if err != nil {
		return control.Checkpoint{}, err
	}
	rec := store.Checkpoint{ID: id.New(id.Checkpoint), Sandbox: b.record().ID, Name: o.Name, Created: time.Now().UTC()}
	// The record takes the name before anything stops.
	if err := s.store.AddCheckpoint(ctx, rec); err != nil {
		return control.Checkpoint{}, err
	}
	// A client that goes away, and has perhaps seen it in the tree, must not take
	// it back.
	c, err := client.Checkpoint(context.WithoutCancel(ctx), control.CheckpointRequest{
		Sandbox: rec.Sandbox, Checkpoint: rec.ID, Name: o.Name, Async: o.Async, Keep: o.Keep != KeepNot, Explain: o.Explain,
	})
	if err != nil {
		s.undoCheckpoint(ctx, client, rec)
		return control.Checkpoint{}, err
	}
	if _, err := s.update(ctx, b, func(r *store.Sandbox) { r.At = rec.ID }); err != nil {
		s.log.Error("where a sandbox stands could not be stored", "sandbox", rec.Sandbox, "error", err)
	}
	c.Name = o.Name
	noted := c
	noted.Items = nil // for who asked alone
	s.note(context.WithoutCancel(ctx), noted)
	return c, nil
}

// undoCheckpoint removes a checkpoint that failed, or of which it is unknown
// whether it did.
func (s *Sandboxes) undoCheckpoint(ctx context.Context, client *control.Client, rec store.Checkpoint) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err := client.CheckpointRemove(ctx, control.CheckpointRef{Sandbox: rec.Sandbox, Checkpoint: rec.ID})
	if err != nil && !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Unavailable) {
		s.log.Error("a failed checkpoint may be left behind", "checkpoint", rec.ID, "error", err)
	}
	if err := s.store.RemoveCheckpoint(ctx, rec.ID); err != nil {
		s.log.Error("a failed checkpoint is left in the store", "checkpoint", rec.ID, "error", err)
	}
}

// RemoveCheckpoint deletes a checkpoint; sandbox may be empty.
func (s *Sandboxes) RemoveCheckpoint(ctx context.Context, sandbox, ref string) (string, error) {
	c, err := s.resolve(ctx, sandbox, ref)
	if err != nil {
		return "", fmt.Errorf("remove checkpoint: %w", err)
	}
	b, err := s.find(ctx, c.Sandbox)
	if err != nil {
		return "", fmt.Errorf("remove checkpoint: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	client, err := s.reach(ctx, b)
	if err == nil && b.asleep() && b.record().At == c.ID {
		err = fault.New(fault.Conflict, "the sandbox stands still at it").WithHint("sandtree resume %s makes it run on", display(b.record()))
	}
	if err == nil {
		err = client.CheckpointRemove(context.WithoutCancel(ctx), control.CheckpointRef{Sandbox: c.Sandbox, Checkpoint: c.ID})
	}
	if err == nil {
		err = s.dropCheckpoint(context.WithoutCancel(ctx), b, c.ID)
	}
	if err != nil {
		return "", fmt.Errorf("remove checkpoint %q: %w", ref, err)
	}
	return c.ID, nil
}

// Standby asks for bodies of a checkpoint that stand ready; sandbox may be empty.
func (s *Sandboxes) Standby(ctx context.Context, sandbox, ref string, count int) (string, error) {
	c, err := s.resolve(ctx, sandbox, ref)
	if err != nil {
		return "", fmt.Errorf("standby: %w", err)
	}
	b, err := s.find(ctx, c.Sandbox)
	if err != nil {
		return "", fmt.Errorf("standby: %w", err)
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	client, err := b.tree()
	if err == nil {
		err = client.Standby(ctx, control.StandbyRequest{CheckpointRef: control.CheckpointRef{Sandbox: c.Sandbox, Checkpoint: c.ID}, Count: count})
	}
	if err != nil {
		return "", fmt.Errorf("standby of checkpoint %q: %w", ref, err)
	}
	return c.ID, nil
}
