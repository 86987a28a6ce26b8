package lifecycle

import (
	"context"

	"github.com/sandtree/sandtree/internal/fault"
	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// later puts a report off if this node is still taking up what it found: who
// it is about may not be known yet.
func (s *Sandboxes) later(report func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return false
	}
	s.early = append(s.early, report)
	return true
}

// listen handles the reports that were put off, and no longer puts any off.
func (s *Sandboxes) listen() {
	for {
		s.mu.Lock()
		early := s.early
		s.early = nil
		s.ready = len(early) == 0
		s.mu.Unlock()
		if len(early) == 0 {
			return
		}
		for _, report := range early {
			report()
		}
	}
}

// sessionEnded takes a supervisor's report.
func (s *Sandboxes) sessionEnded(e control.Session) {
	if !s.later(func() { s.endSession(e) }) {
		s.endSession(e)
	}
}

func (s *Sandboxes) endSession(e control.Session) {
	s.mu.Lock()
	b := s.live[e.Sandbox]
	s.mu.Unlock()
	if b == nil {
		return
	}
	b.recMu.Lock()
	if b.rolling {
		// Whether it is over, or known, is seen when the body is there.
		b.ended = append(b.ended, e)
		b.recMu.Unlock()
		return
	}
	se, fam := b.running[e.ID], b.fam
	b.recMu.Unlock()
	switch {
	case se != nil:
		se.SetEnded(context.Background(), e.Generation, e.ExitCode, e.Reason)
	case fam != nil:
		// Nobody waits for it: its client went away while it was started.
		go func() {
			_ = fam.client.Forget(context.Background(), control.SessionRequest{Sandbox: e.Sandbox, Session: e.ID})
		}()
	}
}

// sandboxEnded takes a supervisor's report of a body that died. Its
// checkpoints are still there.
func (s *Sandboxes) sandboxEnded(e control.SandboxEnded) {
	end := func() {
		s.mu.Lock()
		b := s.live[e.Sandbox]
		s.mu.Unlock()
		if b == nil {
			return
		}
		// Not on the goroutine that brings events: the sandbox may be busy
		// with a call whose reply waits behind it.
		go func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			if !b.alive() { // a rollback may have given it a new body meanwhile
				s.lose(b, e.Reason, session.SandboxEnded)
			}
		}()
	}
	if !s.later(end) {
		end()
	}
}

// alive asks the supervisor whether a sandbox has a body. b.mu is held.
func (b *sandbox) alive() bool {
	b.recMu.Lock()
	fam, id := b.fam, b.rec.ID
	b.recMu.Unlock()
	if fam == nil {
		return false
	}
	l, err := fam.client.List(context.Background())
	if err != nil {
		return false
	}
	for _, body := range l.Sandboxes {
		if body.ID == id {
			return body.Alive
		}
	}
	return false
}

// SupervisorDied takes the host's report. The family's sandboxes come back at
// their last durable checkpoint, those that ran at once; what has none is lost.
func (s *Sandboxes) SupervisorDied(e hostcontrol.SupervisorDied) {
	s.families.died(e.Family, e.PID)
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
		mine := b.fam != nil && b.fam.pid == e.PID
		if mine {
			b.fam = nil
		}
		b.recMu.Unlock()
		if mine && b.record().Golden {
			s.goldenDied(b)
		} else if mine && s.fallAsleep(b, "its supervisor died: "+e.Reason) {
			go s.comeBack(b)
		}
		b.mu.Unlock()
	}
}

// fallAsleep notes that a sandbox has lost its supervisor. It reports whether
// it ran, and may come back. b.mu is held.
func (s *Sandboxes) fallAsleep(b *sandbox, reason string) bool {
	ctx := context.Background()
	rec := b.record()
	may, err := s.mayComeBack(ctx, rec)
	if err != nil {
		s.log.Error("what of a sandbox is durable is not known", "sandbox", rec.ID, "error", err)
	}
	switch {
	case rec.State == store.Lost:
		return false
	case !may:
		s.lose(b, reason, session.Lost)
		return false
	}
	_, err = s.update(ctx, b, func(r *store.Sandbox) {
		if r.State == store.Running {
			r.Reason = reason
		}
		r.State = store.Hibernated
	})
	if err != nil {
		s.log.Error("what became of a sandbox could not be recorded", "sandbox", rec.ID, "error", err)
	}
	b.recMu.Lock()
	running := values(b.running)
	b.recMu.Unlock()
	for _, se := range running {
		se.Suspend()
	}
	return rec.State == store.Running
}

// comeBack wakes a sandbox whose supervisor has died.
func (s *Sandboxes) comeBack(b *sandbox) {
	err := s.wake(context.Background(), b)
	switch {
	case err == nil:
		s.log.Info("a sandbox came back", "sandbox", b.record().ID, "because", b.record().Reason)
	case fault.Is(err, fault.Lost):
		b.mu.Lock()
		defer b.mu.Unlock()
		s.lose(b, b.record().LostReason, session.Lost)
	default: // the next who uses it tries again
		s.log.Error("a sandbox did not come back", "sandbox", b.record().ID, "error", err)
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
