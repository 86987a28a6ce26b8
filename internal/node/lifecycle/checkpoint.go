package lifecycle

import (
	"context"
	"fmt"
	"os"
	"strings"
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

// resolve finds a checkpoint: by id; by name in a sandbox; or, without one, as
// "SANDBOX/CHECKPOINT" or by a name that only one sandbox has.
func (s *Sandboxes) resolve(ctx context.Context, sandbox, ref string) (store.Checkpoint, error) {
	if ref == "" {
		return store.Checkpoint{}, fault.New(fault.Invalid, "no checkpoint is named")
	}
	if before, after, ok := strings.Cut(ref, "/"); ok && sandbox == "" {
		sandbox, ref = before, after
	}
	c, err := s.store.Checkpoint(ctx, ref)
	byID := err == nil
	if err != nil && !fault.Is(err, fault.NotFound) {
		return store.Checkpoint{}, err
	}
	if sandbox == "" && byID {
		return c, nil
	}
	own := ""
	if sandbox != "" {
		b, err := s.find(ctx, sandbox)
		if err != nil {
			return store.Checkpoint{}, err
		}
		own = b.record().ID
		if byID && c.Sandbox == own {
			return c, nil
		}
	}
	named, err := s.store.CheckpointsNamed(ctx, own, ref)
	switch {
	case err != nil:
		return store.Checkpoint{}, err
	case len(named) == 1:
		return named[0], nil
	case len(named) > 1:
		return store.Checkpoint{}, fault.New(fault.Invalid, "checkpoint %q: %d sandboxes have one of this name", ref, len(named)).
			WithHint("say which: SANDBOX/%s", ref)
	}
	if own != "" {
		others, err := s.store.CheckpointsNamed(ctx, "", ref)
		if err != nil {
			return store.Checkpoint{}, err
		}
		if byID {
			others = append(others, c)
		}
		if len(others) > 0 {
			return store.Checkpoint{}, fault.New(fault.Invalid, "checkpoint %q is of sandbox %q, not of %q", ref, s.call(ctx, others[0].Sandbox), sandbox).
				WithHint("sandtree tree %s shows the checkpoints of this one; sandtree fork %s makes a new sandbox from that one", sandbox, others[0].ID)
		}
	}
	return store.Checkpoint{}, fault.New(fault.NotFound, "checkpoint %q does not exist", ref).WithHint("sandtree tree shows the checkpoints")
}

// call returns how to call a sandbox in messages.
func (s *Sandboxes) call(ctx context.Context, sandbox string) string {
	rec, err := s.store.Sandbox(ctx, sandbox)
	if err != nil {
		return sandbox
	}
	return display(rec)
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
