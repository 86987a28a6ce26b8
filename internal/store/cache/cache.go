// Package cache keeps what a node reads again and again from its store in
// memory: templates, checkpoints by id, and sessions. A rollback or a fork
// reads each of them, and a query costs as much as the rest of the node's work.
//
// Every write goes to the store first and is then seen here, so a Store is
// right as long as it is the only way to what is below it.
package cache

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/store"
)

// maxEntries bounds each kind; a kind that is full begins anew.
const maxEntries = 4096

// Store is a store with a memory.
type Store struct {
	store.Store

	mu sync.Mutex
	// writes counts the writes that have ended: what was read before the last
	// of them is not kept.
	writes uint64
	// What is in these is never changed, only replaced: readers copy it without
	// the lock.
	templates   map[string]store.Template // by id and by name
	checkpoints map[string]store.Checkpoint
	sessions    map[string][]store.Session // by sandbox, oldest first
}

var _ store.Store = (*Store)(nil)

// New returns a store in front of another, which belongs to it from now on.
func New(below store.Store) *Store {
	return &Store{
		Store: below, templates: map[string]store.Template{}, checkpoints: map[string]store.Checkpoint{},
		sessions: map[string][]store.Session{},
	}
}

// read returns what is known of key, or asks below and keeps the answer.
func read[T any](s *Store, known map[string]T, key string, below func() (T, error)) (T, error) {
	s.mu.Lock()
	v, ok := known[key]
	writes := s.writes
	s.mu.Unlock()
	if ok {
		return v, nil
	}
	v, err := below()
	if err != nil {
		return v, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if writes == s.writes {
		put(known, key, v)
	}
	return v, nil
}

func put[T any](known map[string]T, key string, v T) {
	if len(known) >= maxEntries {
		clear(known)
	}
	known[key] = v
}

// wrote takes note of a write, whether it failed or not: see says what it has
// made untrue.
func (s *Store) wrote(err error, see func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	see()
	return err
}

// AddTemplate implements [store.Templates].
func (s *Store) AddTemplate(ctx context.Context, t store.Template) error {
	return s.wrote(s.Store.AddTemplate(ctx, t), func() {})
}

// Template implements [store.Templates].
func (s *Store) Template(ctx context.Context, ref string) (store.Template, error) {
	t, err := read(s, s.templates, ref, func() (store.Template, error) { return s.Store.Template(ctx, ref) })
	t.Layers, t.Env = slices.Clone(t.Layers), maps.Clone(t.Env)
	return t, err
}

// RemoveTemplate implements [store.Templates].
func (s *Store) RemoveTemplate(ctx context.Context, id string) error {
	return s.wrote(s.Store.RemoveTemplate(ctx, id), func() { clear(s.templates) })
}

// RemoveSandbox implements [store.Sandboxes].
func (s *Store) RemoveSandbox(ctx context.Context, id string) error {
	return s.wrote(s.Store.RemoveSandbox(ctx, id), func() {
		delete(s.sessions, id)
		maps.DeleteFunc(s.checkpoints, func(_ string, c store.Checkpoint) bool { return c.Sandbox == id })
	})
}

// AddSession implements [store.Sessions].
func (s *Store) AddSession(ctx context.Context, r store.Session) error {
	return s.wrote(s.Store.AddSession(ctx, r), func() { delete(s.sessions, r.Sandbox) })
}

// Sessions implements [store.Sessions].
func (s *Store) Sessions(ctx context.Context, sandbox string) ([]store.Session, error) {
	if sandbox == "" {
		return s.Store.Sessions(ctx, sandbox)
	}
	all, err := read(s, s.sessions, sandbox, func() ([]store.Session, error) { return s.Store.Sessions(ctx, sandbox) })
	all = slices.Clone(all)
	for i := range all {
		all[i].Argv, all[i].Marks = slices.Clone(all[i].Argv), slices.Clone(all[i].Marks)
	}
	return all, err
}

// UpdateBody implements [store.Sandboxes].
func (s *Store) UpdateBody(ctx context.Context, b store.Sandbox, sessions []store.Session) error {
	err := s.Store.UpdateBody(ctx, b, sessions)
	return s.wrote(err, func() {
		for _, r := range sessions {
			s.see(r, err)
		}
	})
}

// UpdateSandboxes implements [store.Sandboxes].
func (s *Store) UpdateSandboxes(ctx context.Context, all []store.Sandbox, added []store.Session) error {
	return s.wrote(s.Store.UpdateSandboxes(ctx, all, added), func() {
		for _, r := range added {
			delete(s.sessions, r.Sandbox)
		}
	})
}

// UpdateSession implements [store.Sessions].
func (s *Store) UpdateSession(ctx context.Context, r store.Session) error {
	err := s.Store.UpdateSession(ctx, r)
	return s.wrote(err, func() { s.see(r, err) })
}

// see takes note of an update of a session and of how that went. mu is held.
func (s *Store) see(r store.Session, err error) {
	all := s.sessions[r.Sandbox]
	i := slices.IndexFunc(all, func(k store.Session) bool { return k.ID == r.ID })
	if err != nil || i < 0 || !all[i].Started.Equal(r.Started) { // their order may be another
		delete(s.sessions, r.Sandbox)
		return
	}
	all = slices.Clone(all) // somebody may be copying it
	all[i] = asKept(all[i], r)
	s.sessions[r.Sandbox] = all
}

// asKept is what the store answers for a record after an update of it: an id,
// a sandbox and a command stay, and a time is an instant of UTC.
func asKept(old, r store.Session) store.Session {
	r.Sandbox, r.Key, r.Argv, r.TTY = old.Sandbox, old.Key, old.Argv, old.TTY
	r.Started, r.Deadline, r.EndedAt = instant(r.Started), instant(r.Deadline), instant(r.EndedAt)
	r.Marks = slices.Clone(r.Marks)
	return r
}

func instant(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0) // without the reading of the monotonic clock
}

// RemoveSession implements [store.Sessions].
func (s *Store) RemoveSession(ctx context.Context, id string) error {
	return s.wrote(s.Store.RemoveSession(ctx, id), func() {
		maps.DeleteFunc(s.sessions, func(_ string, all []store.Session) bool {
			return slices.ContainsFunc(all, func(r store.Session) bool { return r.ID == id })
		})
	})
}

// AddCheckpoint implements [store.Checkpoints].
func (s *Store) AddCheckpoint(ctx context.Context, c store.Checkpoint) error {
	return s.wrote(s.Store.AddCheckpoint(ctx, c), func() {})
}

// UpdateCheckpoint implements [store.Checkpoints].
func (s *Store) UpdateCheckpoint(ctx context.Context, c store.Checkpoint) error {
	err := s.Store.UpdateCheckpoint(ctx, c)
	return s.wrote(err, func() {
		old, known := s.checkpoints[c.ID]
		if err != nil || !known {
			delete(s.checkpoints, c.ID)
			return
		}
		old.Info = c.Info
		old.Info.StageNS, old.Info.Items = maps.Clone(c.Info.StageNS), slices.Clone(c.Info.Items)
		s.checkpoints[c.ID] = old
	})
}

// Checkpoint implements [store.Checkpoints].
func (s *Store) Checkpoint(ctx context.Context, id string) (store.Checkpoint, error) {
	c, err := read(s, s.checkpoints, id, func() (store.Checkpoint, error) { return s.Store.Checkpoint(ctx, id) })
	c.Info.StageNS, c.Info.Items = maps.Clone(c.Info.StageNS), slices.Clone(c.Info.Items)
	return c, err
}

// RemoveCheckpoint implements [store.Checkpoints].
func (s *Store) RemoveCheckpoint(ctx context.Context, id string) error {
	return s.wrote(s.Store.RemoveCheckpoint(ctx, id), func() { delete(s.checkpoints, id) })
}
