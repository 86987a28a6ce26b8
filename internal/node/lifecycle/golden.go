package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// goldens are the golden checkpoints of templates with a start command. A
// golden sandbox runs the command once, until it is ready; then a checkpoint is
// taken, its processes end, and each sandbox of the template is a fork of that.
//
// The golden sandbox has a record, as others have, so that a node that starts
// finds what an earlier one made or left half made. The checkpoint is durable as
// others are: the family's next supervisor has it from disk. Only one that was
// not written yet is made again, when the next sandbox is created.
type goldens struct {
	ctx    context.Context // ends with the node
	cancel context.CancelFunc
	making sync.WaitGroup

	mu         sync.Mutex
	byTemplate map[string]*golden
}

func newGoldens() *goldens {
	ctx, cancel := context.WithCancel(context.Background())
	return &goldens{ctx: ctx, cancel: cancel, byTemplate: map[string]*golden{}}
}

// close ends the making of those that are not finished.
func (gs *goldens) close() {
	gs.cancel()
	gs.making.Wait()
}

// golden is a golden checkpoint that is there, or is being made.
type golden struct {
	fam    *family // nil: no supervisor runs, and the next one may have it
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it is made or has failed
	// What follows is set by then.
	err        error
	sandbox    *sandbox // nil: there is none (any more)
	checkpoint control.Checkpoint
	start      string // key of the start command's session
}

// golden returns the golden checkpoint of a template in a family, which is made
// if it is not there. All who want one that is being made wait for it; one that
// fails is made again for the next who asks.
func (s *Sandboxes) golden(ctx context.Context, t store.Template, fam *family) (*golden, error) {
	gs := s.goldens
	gs.mu.Lock()
	g := gs.byTemplate[t.ID]
	if g == nil || !g.of(fam) {
		old := g
		g = &golden{fam: fam, done: make(chan struct{})}
		var making context.Context
		making, g.cancel = context.WithCancelCause(gs.ctx)
		gs.byTemplate[t.ID] = g
		gs.making.Go(func() { s.makeGolden(making, t, g, old) })
	}
	gs.mu.Unlock()
	select {
	case <-g.done:
		return g, g.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// of reports whether a supervisor has the checkpoint, or is making it.
func (g *golden) of(fam *family) bool { return g.fam != nil && g.fam.pid == fam.pid }

// makeGolden makes a golden checkpoint, and removes what is left of an earlier
// one, whose supervisor has died.
func (s *Sandboxes) makeGolden(ctx context.Context, t store.Template, g, old *golden) {
	defer close(g.done)
	defer g.cancel(nil)
	if old != nil {
		<-old.done
		s.dropGolden(old)
	}
	err := s.buildGolden(ctx, t, g)
	if err == nil {
		return
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	g.err = fmt.Errorf("golden checkpoint: %w", err)
	s.goldens.mu.Lock()
	if s.goldens.byTemplate[t.ID] == g {
		delete(s.goldens.byTemplate, t.ID)
	}
	s.goldens.mu.Unlock()
	s.dropGolden(g)
}

// dropGolden removes the sandbox of a golden checkpoint.
func (s *Sandboxes) dropGolden(g *golden) {
	if g.sandbox != nil {
		g.sandbox.mu.Lock()
		defer g.sandbox.mu.Unlock()
		s.undo(g.sandbox)
	}
}

// removeGolden removes a template's golden checkpoint, or ends its making.
func (s *Sandboxes) removeGolden(template string) {
	s.goldens.mu.Lock()
	g := s.goldens.byTemplate[template]
	delete(s.goldens.byTemplate, template)
	s.goldens.mu.Unlock()
	if g == nil {
		return
	}
	g.cancel(fault.New(fault.NotFound, "the template was removed"))
	<-g.done
	if g.err == nil {
		s.dropGolden(g)
	}
}

func (s *Sandboxes) buildGolden(ctx context.Context, t store.Template, g *golden) error {
	rec := store.Sandbox{
		ID: id.NewSandbox(s.tag), Template: t.ID, Env: t.Env, Resources: t.Resources, State: store.Creating,
		Created: time.Now().UTC(), Golden: true,
	}
	rec.Hostname = hostname(store.Sandbox{ID: rec.ID, Name: t.Name})
	b := newSandbox(rec, g.fam)
	if err := s.add(ctx, b); err != nil {
		return err
	}
	g.sandbox = b
	_, err := g.fam.client.Create(ctx, control.CreateRequest{
		Sandbox: rec.ID, Hostname: rec.Hostname, Resources: rec.Resources, Setuid: t.Setuid,
	})
	if err != nil {
		return err
	}
	se, release, err := s.shell(ctx, b, t, t.Start, 0)
	if err != nil {
		return fmt.Errorf("start command: %w", err)
	}
	defer release()
	g.start = se.Record().Key
	if err := s.awaitReady(ctx, b, t, se); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.checkpoint, err = s.checkpoint(ctx, b, CheckpointOptions{}); err != nil {
		return err
	}
	if err := g.fam.client.Halt(ctx, rec.ID); err != nil {
		return err
	}
	_, err = s.update(ctx, b, func(r *store.Sandbox) { r.State, r.StartSession = store.Running, g.start })
	return err
}

// shell runs a shell command in a golden sandbox.
func (s *Sandboxes) shell(ctx context.Context, b *sandbox, t store.Template, command string, timeout time.Duration) (*session.Session, func(), error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return s.exec(ctx, b, t, ExecOptions{Argv: []string{"/bin/sh", "-c", command}, StdinClosed: true, Timeout: timeout})
}

// fromGolden makes a sandbox, whose record is there, from a golden checkpoint.
// b.mu is held.
func (s *Sandboxes) fromGolden(ctx context.Context, b *sandbox, g *golden) error {
	// Until it has a durable checkpoint of its own it comes back at this one.
	rec, err := s.update(ctx, b, func(r *store.Sandbox) { r.ForkedFrom = g.checkpoint.ID })
	if err != nil {
		return err
	}
	b.hold() // until its sessions are known
	defer s.letGo(b)
	r, files, err := g.fam.client.Fork(ctx, control.ForkRequest{
		From:      control.CheckpointRef{Sandbox: g.sandbox.record().ID, Checkpoint: g.checkpoint.ID},
		Sandboxes: []string{rec.ID}, Hostnames: []string{rec.Hostname}, Resources: &rec.Resources,
	})
	if err != nil {
		return err
	}
	if len(r.Sandboxes) != 1 {
		closeAll(files)
		return fault.New(fault.Internal, "the supervisor made %d copies of 1", len(r.Sandboxes))
	}
	sessions, err := s.adopt(ctx, b, g.fam.client, r.Sandboxes[0], files)
	if err != nil {
		return fmt.Errorf("its sessions: %w", err)
	}
	for _, a := range sessions {
		if a.state.ID == g.start { // it has not ended
			b.change(func(r *store.Sandbox) { r.StartSession = a.record.ID })
		}
	}
	return s.settle(ctx, []*sandbox{b}, sessions)
}

// recoverGolden takes up a golden sandbox that an earlier node has finished.
// b.mu is held.
func (s *Sandboxes) recoverGolden(ctx context.Context, b *sandbox, f found, there bool) error {
	rec := b.record()
	if there {
		tree, err := f.fam.client.Tree(ctx, rec.ID)
		if err != nil {
			return err
		}
		if err := s.agree(ctx, tree); err != nil {
			return err
		}
		if s.takeGolden(b, f.fam, tree.Checkpoints) {
			return nil
		}
	} else {
		c, err := s.store.Checkpoint(ctx, rec.At)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		if c.Info.ID != "" && mayBeDurable(c.Info) && s.takeGolden(b, nil, []control.Checkpoint{c.Info}) {
			return nil
		}
	}
	if err := s.remove(ctx, b); err != nil {
		s.log.Error("remove a golden sandbox that was lost", "sandbox", rec.ID, "error", err)
	}
	return nil
}

// takeGolden makes a golden sandbox that is there its template's, if its checkpoint
// is among some that a supervisor has; without a supervisor, that the next may have.
func (s *Sandboxes) takeGolden(b *sandbox, fam *family, all []control.Checkpoint) bool {
	rec := b.record()
	i := slices.IndexFunc(all, func(c control.Checkpoint) bool { return c.ID == rec.At })
	if i < 0 {
		return false
	}
	g := &golden{fam: fam, cancel: func(error) {}, done: make(chan struct{}), sandbox: b, checkpoint: all[i], start: rec.StartSession}
	close(g.done)
	s.goldens.mu.Lock()
	defer s.goldens.mu.Unlock()
	if old := s.goldens.byTemplate[rec.Template]; old != nil {
		select {
		case <-old.done:
		default:
			return false // another one is being made
		}
		if old.sandbox != b {
			return false
		}
	}
	s.goldens.byTemplate[rec.Template] = g
	return true
}

// goldenRecovered notes that a new supervisor has a golden sandbox of an earlier one, or
// has it not: then its checkpoint is made again for whoever wants it next.
func (s *Sandboxes) goldenRecovered(b *sandbox, f *family, t control.TreeReply) {
	b.setFamily(f)
	if !s.takeGolden(b, f, t.Checkpoints) {
		s.log.Warn("a golden checkpoint did not come back; it is made again", "template", f.id)
	}
}

// goldenDied notes that the supervisor of a golden sandbox is gone. b.mu is held.
func (s *Sandboxes) goldenDied(b *sandbox) {
	s.goldens.mu.Lock()
	defer s.goldens.mu.Unlock()
	g := s.goldens.byTemplate[b.record().Template]
	if g == nil {
		return
	}
	select {
	case <-g.done: // else its making fails, and tells so
		if g.sandbox == b {
			lost := *g
			lost.fam = nil
			s.goldens.byTemplate[b.record().Template] = &lost
		}
	default:
	}
}

// keepGoldens waits until the golden checkpoints are durable, which the daemon's end
// would lose otherwise.
func (s *Sandboxes) keepGoldens(ctx context.Context, all []*sandbox) {
	for _, b := range all {
		rec := b.record()
		if !rec.Golden || rec.State == store.Creating || rec.State == store.Removing {
			continue
		}
		c, err := s.store.Checkpoint(ctx, rec.At)
		if err != nil || c.Info.Durable == control.DurableYes || c.Info.ID == "" {
			continue
		}
		if reason := s.keepNow(ctx, b, c); reason != "" {
			s.log.Warn("a golden checkpoint is made again by the next daemon: it could not be made durable", "template", rec.Template, "reason", reason)
		}
	}
}

// mayBeDurable reports whether a checkpoint is durable, or may be: it was being written
// when it was last heard of.
func mayBeDurable(c control.Checkpoint) bool {
	return c.Durable == control.DurableYes || c.Durable == control.DurablePending
}

// GoldenState says whether a template's golden checkpoint is there.
type GoldenState string

// The states of a golden checkpoint.
const (
	GoldenMissing GoldenState = "missing" // it is made for the next sandbox
	GoldenMaking  GoldenState = "making"
	GoldenReady   GoldenState = "ready"
)

// Golden returns the state of a template's golden checkpoint, with the
// checkpoint if it is ready.
func (s *Sandboxes) Golden(template string) (GoldenState, control.Checkpoint) {
	s.goldens.mu.Lock()
	g := s.goldens.byTemplate[template]
	s.goldens.mu.Unlock()
	if g == nil {
		return GoldenMissing, control.Checkpoint{}
	}
	select {
	case <-g.done:
	default:
		return GoldenMaking, control.Checkpoint{}
	}
	if g.err != nil {
		return GoldenMissing, control.Checkpoint{}
	}
	if f := s.families.running(template); f != nil && g.of(f) {
		return GoldenReady, g.checkpoint
	}
	// The next supervisor has what is durable.
	if c, err := s.store.Checkpoint(context.Background(), g.checkpoint.ID); err != nil || c.Info.Durable != control.DurableYes {
		return GoldenMissing, control.Checkpoint{}
	}
	return GoldenReady, g.checkpoint
}

// Prepare makes the golden checkpoint of a template that has just been made. If
// that fails, the template is removed.
func (s *Sandboxes) Prepare(ctx context.Context, t store.Template) error {
	if t.Start == "" {
		return nil
	}
	fam, err := s.families.ensure(ctx, t)
	if err == nil {
		_, err = s.golden(ctx, t, fam)
	}
	if err == nil {
		return nil
	}
	if _, e := s.RemoveTemplate(context.WithoutCancel(ctx), t.ID, true); e != nil && !fault.Is(e, fault.NotFound) {
		err = errors.Join(err, e)
	}
	return fmt.Errorf("create template %q: %w", t.Name, err)
}
