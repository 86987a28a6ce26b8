package lifecycle

import (
	"context"

	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// sessionEnded takes a supervisor's report.
func (s *Sandboxes) sessionEnded(e control.Session) {
	s.mu.Lock()
	b := s.live[e.Sandbox]
	s.mu.Unlock()
	if b == nil {
		return
	}
	b.recMu.Lock()
	if b.rolling {
		// Whether it is over is known when the rollback is.
		b.ended = append(b.ended, e)
		b.recMu.Unlock()
		return
	}
	se := b.running[e.ID]
	b.recMu.Unlock()
	if se != nil {
		se.SetEnded(context.Background(), e.Generation, e.ExitCode, e.Reason)
	}
}

// sandboxEnded takes a supervisor's report of a body that died. Its
// checkpoints are still there.
func (s *Sandboxes) sandboxEnded(e control.SandboxEnded) {
	s.mu.Lock()
	b := s.live[e.Sandbox]
	s.mu.Unlock()
	if b == nil {
		return
	}
	// Not on the goroutine that brings events: the sandbox may be busy with a
	// call whose reply waits behind it.
	go func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		s.lose(b, e.Reason, session.SandboxEnded)
	}()
}

// SupervisorDied takes the host's report: the family's sandboxes are lost.
func (s *Sandboxes) SupervisorDied(e hostcontrol.SupervisorDied) {
	f := s.families.drop(e.Family)
	s.mu.Lock()
	var lost []*sandbox
	for _, b := range s.live {
		lost = append(lost, b)
	}
	s.mu.Unlock()
	for _, b := range lost {
		if b.record().Template != e.Family {
			continue
		}
		b.mu.Lock()
		b.recMu.Lock()
		// A sandbox of the family's next supervisor is not meant.
		mine := b.fam != nil && b.fam == f
		if mine {
			b.fam = nil
		}
		b.recMu.Unlock()
		if mine {
			s.lose(b, "its supervisor died: "+e.Reason, session.Lost)
		}
		b.mu.Unlock()
	}
}

// lose marks a sandbox as lost. b.mu is held.
func (s *Sandboxes) lose(b *sandbox, reason, sessions string) {
	ctx := context.Background()
	b.recMu.Lock()
	skip := b.gone || b.rec.State != store.Running && b.rec.State != store.Lost
	running := values(b.running)
	b.recMu.Unlock()
	if skip {
		return
	}
	_, err := s.update(ctx, b, func(r *store.Sandbox) { r.State, r.LostReason = store.Lost, reason })
	if err != nil {
		s.log.Error("a lost sandbox could not be recorded as such", "sandbox", b.rec.ID, "error", err)
	}
	for _, se := range running {
		se.Abandon(ctx, se.Record().Generation, 128+9, sessions)
	}
}
