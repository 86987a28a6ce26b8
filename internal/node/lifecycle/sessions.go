package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/output"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
)

// sessions are the sessions that are open: those that run and those that
// somebody looks at. Each holder has a reference; without one, a session's
// files are closed.
type sessions struct {
	store store.Store
	dir   string
	log   *slog.Logger

	mu   sync.Mutex
	byID map[string]*session.Session // the newest of each id
	refs map[*session.Session]int
}

// make opens a session with one reference, the caller's. If somebody still
// looks at an ended session of the same id, both are open for a while.
func (ss *sessions) make(cfg session.Config) (*session.Session, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.openLocked(cfg)
}

func (ss *sessions) openLocked(cfg session.Config) (*session.Session, error) {
	cfg.Store, cfg.Dir, cfg.Log = ss.store, logDir(ss.dir, cfg.Record.Sandbox), ss.log
	s, err := session.New(cfg)
	if err != nil {
		return nil, err
	}
	ss.byID[cfg.Record.ID] = s
	ss.refs[s] = 1
	return s, nil
}

// acquire returns a session with one more reference. One that is not open has
// ended; it is opened for its log.
func (ss *sessions) acquire(ctx context.Context, id string) (*session.Session, error) {
	if s := ss.again(id); s != nil {
		return s, nil
	}
	rec, err := ss.store.Session(ctx, id)
	if err != nil {
		return nil, hint(err, "sandtree sessions SANDBOX shows the sessions")
	}
	if s := ss.again(id); s != nil {
		return s, nil
	}
	if !rec.Ended {
		return nil, fault.New(fault.Conflict, "session %q is just being started or ended", id)
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s := ss.byID[id]; s != nil {
		ss.refs[s]++
		return s, nil
	}
	return ss.openLocked(session.Config{Record: rec})
}

// again returns an open session with one more reference, or nil.
func (ss *sessions) again(id string) *session.Session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.byID[id]
	if s != nil {
		ss.refs[s]++
	}
	return s
}

// release gives a reference back.
func (ss *sessions) release(s *session.Session) {
	id := s.Record().ID
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.refs[s]--; ss.refs[s] > 0 {
		return
	}
	delete(ss.refs, s)
	if ss.byID[id] == s {
		delete(ss.byID, id)
	}
	if err := s.Close(); err != nil {
		ss.log.Error("close a session's log", "session", id, "error", err)
	}
}

// drop deletes one ended session, unless somebody looks at it.
func (ss *sessions) drop(ctx context.Context, rec store.Session) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.byID[rec.ID] != nil {
		return nil
	}
	if err := ss.store.RemoveSession(ctx, rec.ID); err != nil {
		return err
	}
	return output.Remove(logDir(ss.dir, rec.Sandbox), rec.ID)
}

// forget deletes the logs of a sandbox. Who still follows one sees its end.
func (ss *sessions) forget(sandbox string) error {
	if err := os.RemoveAll(logDir(ss.dir, sandbox)); err != nil {
		return fmt.Errorf("delete logs: %w", err)
	}
	return nil
}

// sweep deletes the logs of sandboxes that are not known: of one that was
// removed when an earlier node died.
func (ss *sessions) sweep(known func(sandbox string) bool) error {
	all, err := os.ReadDir(ss.dir)
	if err != nil {
		return fmt.Errorf("look for logs of removed sandboxes: %w", err)
	}
	for _, e := range all {
		if !known(e.Name()) {
			if err := ss.forget(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (ss *sessions) close() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for s := range ss.refs {
		if err := s.Close(); err != nil {
			ss.log.Error("close a session's log", "session", s.Record().ID, "error", err)
		}
	}
}
