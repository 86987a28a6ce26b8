package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// found is a sandbox that a supervisor has.
type found struct {
	fam  *family
	body control.Sandbox
}

// recover makes the records agree with what the supervisors have, after the
// death of an earlier node or of everything.
func (s *Sandboxes) recover(ctx context.Context) error {
	bodies := map[string]found{}
	fams, err := s.families.connectAll(ctx)
	if err != nil {
		return err
	}
	for _, f := range fams {
		l, err := f.client.List(ctx)
		if err != nil {
			s.log.Error("a supervisor does not answer", "family", f.id, "error", err)
			continue
		}
		for _, body := range l.Sandboxes {
			bodies[body.ID] = found{f, body}
		}
	}
	recs, err := s.store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		f, ok := bodies[rec.ID]
		delete(bodies, rec.ID)
		b := newSandbox(rec, f.fam)
		b.kept = keepEnded + pruneStep // it is counted at the next end
		s.mu.Lock()
		s.live[rec.ID] = b
		s.mu.Unlock()
		if err := s.recoverOne(ctx, b, f, ok); err != nil {
			return fmt.Errorf("sandbox %s: %w", rec.ID, err)
		}
	}
	for id, f := range bodies {
		s.log.Warn("a sandbox without a record is removed", "sandbox", id)
		if err := f.fam.client.Remove(ctx, id); err != nil && !fault.Is(err, fault.NotFound) {
			s.log.Error("remove a sandbox without a record", "sandbox", id, "error", err)
		}
	}
	known := func(id string) bool {
		return slices.ContainsFunc(recs, func(r store.Sandbox) bool { return r.ID == id })
	}
	if err := s.sessions.sweep(known); err != nil {
		s.log.Error("logs of removed sandboxes are left behind", "error", err)
	}
	return nil
}

// recoverOne takes up one sandbox; there says whether a supervisor has it.
func (s *Sandboxes) recoverOne(ctx context.Context, b *sandbox, f found, there bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := b.record()
	switch {
	case rec.State == store.Creating, rec.State == store.Removing:
		// Nobody was told of the one; the other was asked for.
		if err := s.remove(ctx, b); err != nil {
			s.log.Error("remove what an earlier node left half done", "sandbox", rec.ID, "error", err)
		}
		return nil
	case rec.Golden:
		return s.recoverGolden(ctx, b, f, there)
	case !there && rec.State != store.Lost:
		may, err := s.mayComeBack(ctx, rec)
		if err != nil {
			return err
		}
		if may {
			_, err := s.update(ctx, b, func(r *store.Sandbox) {
				if r.State == store.Running {
					r.Reason = "the daemon, or its supervisor, has ended"
				}
				r.State = store.Hibernated
			})
			return err
		}
		if err := s.endAll(ctx, rec.ID, session.Lost); err != nil {
			return err
		}
		_, err = s.update(ctx, b, func(r *store.Sandbox) {
			r.State, r.LostReason = store.Lost, "its supervisor died while no node ran"
		})
		return err
	case !there:
		return s.endAll(ctx, rec.ID, session.Lost)
	case !f.body.Alive && (f.body.Suspended != "" || asleep(rec.State)):
		if err := s.recoverCheckpoints(ctx, f, rec.ID); err != nil {
			return err
		}
		_, err := s.update(ctx, b, func(r *store.Sandbox) {
			if !asleep(r.State) {
				r.State = store.Paused
			}
			if f.body.Suspended != "" {
				r.At = f.body.Suspended
			}
		})
		return err
	case !f.body.Alive:
		if err := s.endAll(ctx, rec.ID, session.SandboxEnded); err != nil || rec.State == store.Lost {
			return err
		}
		_, err := s.update(ctx, b, func(r *store.Sandbox) { r.State, r.LostReason = store.Lost, "its processes died" })
		return err
	}
	if err := s.recoverCheckpoints(ctx, f, rec.ID); err != nil {
		return err
	}
	if f.body.Generation != rec.Generation || f.body.At != rec.At || asleep(rec.State) {
		_, err := s.update(ctx, b, func(r *store.Sandbox) {
			r.Generation, r.At = f.body.Generation, f.body.At
			if asleep(r.State) { // it was just being resumed
				r.State = store.Running
			}
		})
		if err != nil {
			return err
		}
	}
	return s.recoverSessions(ctx, b, f)
}

// endAll ends the records of all of a sandbox's sessions.
func (s *Sandboxes) endAll(ctx context.Context, sandbox, reason string) error {
	recs, err := s.store.Sessions(ctx, sandbox)
	if err != nil {
		return err
	}
	for _, r := range recs {
		if r.Ended {
			continue
		}
		if err := s.endRecord(ctx, r, 128+9, reason); err != nil {
			return err
		}
	}
	return nil
}

// endRecord ends a session that no supervisor has.
func (s *Sandboxes) endRecord(ctx context.Context, r store.Session, code int, reason string) error {
	r.Ended, r.EndedAt, r.ExitCode, r.Reason = true, time.Now().UTC(), code, reason
	return s.store.UpdateSession(ctx, r)
}

// recoverSessions makes the sessions of a live sandbox run on. Their logs go
// on where they are.
func (s *Sandboxes) recoverSessions(ctx context.Context, b *sandbox, f found) error {
	recs, err := s.store.Sessions(ctx, f.body.ID)
	if err != nil {
		return err
	}
	byKey := map[string]store.Session{}
	for _, r := range recs {
		byKey[r.Key] = r
	}
	has := map[string]bool{}
	for _, state := range f.body.Sessions {
		has[state.ID] = true
		r, known := byKey[state.ID]
		if err := s.recoverSession(ctx, b, f, state, r, known); err != nil {
			s.log.Error("take up session", "session", state.ID, "sandbox", f.body.ID, "error", err)
		}
	}
	for _, r := range recs {
		if has[r.Key] || r.Ended {
			continue
		}
		reason := session.Lost
		if r.Generation < f.body.Generation {
			reason = session.RolledBack
		}
		if err := s.endRecord(ctx, r, 128+9, reason); err != nil {
			return err
		}
	}
	return nil
}

// recoverSession takes up one session that the supervisor has.
func (s *Sandboxes) recoverSession(ctx context.Context, b *sandbox, f found, state control.Session, r store.Session, known bool) error {
	state, files, err := f.fam.client.Adopt(ctx, control.SessionRequest{Sandbox: f.body.ID, Session: state.ID})
	if err != nil {
		return err
	}
	if !known {
		if state.Ended {
			closeAll(files)
			return f.fam.client.Forget(ctx, control.SessionRequest{Sandbox: f.body.ID, Session: state.ID})
		}
		return s.takeUp(ctx, b, f.fam.client, state, files)
	}
	reborn := r.Generation < state.Generation
	se, err := s.reopen(b, r, f.fam.client)
	switch {
	case err != nil:
		closeAll(files)
		return err
	case state.Ended && len(files) == 0:
		se.Abandon(ctx, state.Generation, state.ExitCode, reason(r, state))
		return nil
	case reborn:
		err = se.Rebirth(state, f.body.At, files)
		se.Save(ctx)
	default:
		err = se.Start(state, files)
	}
	if err == nil && state.Ended {
		// What it left in its pipes is still to be logged.
		se.SetEnded(ctx, state.Generation, state.ExitCode, reason(r, state))
	}
	return err
}

// reason is why a session ended: as the record has it, if it does.
func reason(r store.Session, state control.Session) string {
	if r.Ended && r.Reason != "" {
		return r.Reason
	}
	return state.Reason
}

// recoverCheckpoints makes the checkpoints' names agree with the tree.
func (s *Sandboxes) recoverCheckpoints(ctx context.Context, f found, sandbox string) error {
	tree, err := f.fam.client.Tree(ctx, sandbox)
	if err != nil {
		return err
	}
	return s.agree(ctx, tree)
}
