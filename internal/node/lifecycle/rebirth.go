package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// reborn makes records and sessions agree with a body that was made from a
// checkpoint. files are the descriptors of all sessions that have not ended,
// in order; they are closed. mark is the checkpoint that their followers are told
// of, or empty if nothing was lost. b.mu is held exclusively.
//
// It remains to write: until then a node that starts learns the same from the
// supervisor, whose generation is newer than the record's.
func (s *Sandboxes) reborn(ctx context.Context, b *sandbox, client *control.Client, body control.Sandbox, checkpoint, mark string, files []*os.File) (write func() error, err error) {
	ctx = context.WithoutCancel(ctx)
	b.change(func(r *store.Sandbox) {
		r.State, r.LostReason, r.Generation, r.At = store.Running, "", body.Generation, checkpoint
		r.Reason = ""
	})
	var errs []error
	var revived []*session.Session
	lives := map[string]bool{}
	for _, state := range body.Sessions {
		if state.Ended {
			continue
		}
		n := state.Descriptors()
		if len(files) < n {
			errs = append(errs, fault.New(fault.Internal, "the supervisor sent too few descriptors"))
			break
		}
		lives[state.ID] = true
		state.Generation = body.Generation
		se, err := s.reviveSession(ctx, b, client, state, mark, files[:n])
		if err != nil {
			errs = append(errs, fmt.Errorf("session %s: %w", state.ID, err))
		}
		if se != nil {
			revived = append(revived, se)
		}
		files = files[n:]
	}
	closeAll(files)
	b.recMu.Lock()
	running := values(b.running)
	b.recMu.Unlock()
	for _, se := range running {
		if r := se.Record(); !lives[r.Key] && !r.Ended {
			se.Abandon(ctx, r.Generation, 128+9, session.RolledBack)
		}
	}
	// Those that no node has taken up since it stood still, and that are not of
	// the checkpoint.
	recs, err := s.store.Sessions(ctx, body.ID)
	errs = append(errs, err)
	for _, r := range recs {
		b.recMu.Lock()
		known := b.running[r.Key] != nil
		b.recMu.Unlock()
		if !r.Ended && !known && !lives[r.Key] {
			errs = append(errs, s.endRecord(ctx, r, 128+9, session.RolledBack))
		}
	}
	return func() error {
		return s.save(ctx, b, revived)
	}, errors.Join(errs...)
}

// reviveSession connects one session to its restored processes: one that
// runs, one that has ended since, or one that was forgotten. It returns one
// whose record is still to be written.
func (s *Sandboxes) reviveSession(ctx context.Context, b *sandbox, client *control.Client, state control.Session, checkpoint string, files []*os.File) (*session.Session, error) {
	b.recMu.Lock()
	se := b.running[state.ID]
	sandbox := b.rec.ID
	b.recMu.Unlock()
	if se == nil {
		// It has ended and may be open for somebody who reads its log: he goes
		// on with the old object, which stays ended.
		recs, err := s.store.Sessions(ctx, sandbox)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, r := range recs {
			if r.Key == state.ID {
				if se, err = s.reopen(b, r, client); err != nil {
					closeAll(files)
					return nil, err
				}
			}
		}
	}
	if se == nil {
		return nil, s.takeUp(ctx, b, client, state, files)
	}
	return se, se.Rebirth(state, checkpoint, files)
}

// reopen makes an ended session one that is about to run again.
func (s *Sandboxes) reopen(b *sandbox, r store.Session, client *control.Client) (*session.Session, error) {
	r.Ended, r.EndedAt, r.ExitCode, r.Reason = false, time.Time{}, 0, ""
	return s.newSession(b, r, client)
}
