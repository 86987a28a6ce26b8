package lifecycle

import (
	"context"
	"os"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// adoption is a session that the supervisor runs and no record knows, on its way
// to be one of the node's: its record is to be written, then it starts.
type adoption struct {
	session *session.Session
	record  store.Session
	state   control.Session
	files   []*os.File // its own, until it starts
}

// sessionRecord is a new record of a session that the supervisor runs.
func sessionRecord(b *sandbox, state control.Session) store.Session {
	return store.Session{
		ID: id.New(id.Session), Sandbox: b.record().ID, Key: state.ID, Argv: state.Argv, TTY: state.TTY, PID: state.PID,
		Started: state.Started, Generation: state.Generation,
	}
}

// takeUp makes a session of one that the supervisor runs and no record knows.
func (s *Sandboxes) takeUp(ctx context.Context, b *sandbox, client *control.Client, state control.Session, files []*os.File) error {
	r := sessionRecord(b, state)
	err := s.store.AddSession(ctx, r)
	if err != nil {
		closeAll(files)
		return err
	}
	se, err := s.newSession(b, r, client)
	if err != nil {
		closeAll(files)
		return err
	}
	return se.Start(state, files)
}

// adopt begins to take up the sessions of a new copy. Each gets a log of its own,
// which begins at the checkpoint. files are the descriptors of all that have not
// ended, in order, or none: then they are fetched.
func (s *Sandboxes) adopt(ctx context.Context, b *sandbox, client *control.Client, body control.Sandbox, files []*os.File) (all []adoption, err error) {
	came := len(files) > 0
	defer func() {
		closeAll(files)
		if err != nil {
			closeAdoptions(all)
			all = nil
		}
	}()
	for _, state := range body.Sessions {
		if state.Ended {
			continue
		}
		var own []*os.File
		switch n := state.Descriptors(); {
		case !came:
			if state, own, err = client.Adopt(ctx, control.SessionRequest{Sandbox: body.ID, Session: state.ID}); err != nil {
				return all, err
			}
			if state.Ended {
				closeAll(own)
				continue
			}
		case len(files) < n:
			return all, fault.New(fault.Internal, "the supervisor sent too few descriptors")
		default:
			own, files = files[:n], files[n:]
		}
		a := adoption{record: sessionRecord(b, state), state: state, files: own}
		a.session, err = s.newSession(b, a.record, client)
		all = append(all, a)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// settle writes the records of new copies, as they are here, and of their sessions,
// in one transaction, and starts the sessions. The copies' mu are held.
func (s *Sandboxes) settle(ctx context.Context, copies []*sandbox, sessions []adoption) error {
	if err := s.writeSettled(ctx, copies, sessions); err != nil {
		closeAdoptions(sessions)
		return err
	}
	for i, a := range sessions {
		if err := a.session.Start(a.state, a.files); err != nil {
			closeAdoptions(sessions[i+1:])
			return err
		}
	}
	return nil
}

// writeSettled holds the records' locks, so that what is written is the newest.
func (s *Sandboxes) writeSettled(ctx context.Context, copies []*sandbox, sessions []adoption) error {
	recs := make([]store.Sandbox, len(copies))
	for i, b := range copies {
		b.recMu.Lock()
		defer b.recMu.Unlock()
		recs[i] = b.rec
	}
	added := make([]store.Session, len(sessions))
	for i, a := range sessions {
		added[i] = a.record
	}
	return s.store.UpdateSandboxes(context.WithoutCancel(ctx), recs, added)
}

// closeAdoptions gives up the descriptors of sessions that will not start. The
// sessions end with their sandbox.
func closeAdoptions(all []adoption) {
	for _, a := range all {
		closeAll(a.files)
	}
}
