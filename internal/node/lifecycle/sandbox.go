package lifecycle

import (
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// sandbox is one sandbox while this process lives.
type sandbox struct {
	// mu orders what replaces or ends the body against what uses it.
	mu sync.RWMutex

	// recMu guards what follows; it is held briefly.
	recMu   sync.Mutex
	rec     store.Sandbox
	fam     *family // nil: lost with its supervisor
	gone    bool    // removed
	rolling bool    // reports of sessions wait in ended
	ended   []control.Session
	running map[string]*session.Session // by key; each is one reference
	changed chan struct{}

	template  *store.Template // nil until somebody wants it
	kept      int             // ended sessions in the store, about
	keptBytes int64           // and the room that their logs take
}

func newSandbox(rec store.Sandbox, fam *family) *sandbox {
	return &sandbox{rec: rec, fam: fam, running: map[string]*session.Session{}, changed: make(chan struct{})}
}

func (b *sandbox) record() store.Sandbox {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	return b.rec
}

// broadcast wakes who waits for a change. recMu is held.
func (b *sandbox) broadcast() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// usable returns the supervisor of a sandbox that has a body.
func (b *sandbox) usable() (*control.Client, error) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	switch {
	case b.gone, b.rec.State == store.Removing:
		return nil, fault.New(fault.NotFound, "sandbox %q was removed", display(b.rec))
	case b.rec.State == store.Lost:
		return nil, lostError(b.rec, b.fam != nil)
	case asleep(b.rec.State): // paused just now
		return nil, fault.New(fault.Conflict, "sandbox %q stands still", display(b.rec)).
			WithHint("sandtree resume %s makes it run on", display(b.rec))
	case b.fam == nil:
		return nil, fault.New(fault.Unavailable, "sandbox %q has no supervisor", display(b.rec))
	}
	return b.fam.client, nil
}

func lostError(rec store.Sandbox, canRollBack bool) error {
	e := fault.New(fault.Lost, "sandbox %q is lost: %s", display(rec), rec.LostReason)
	if canRollBack {
		return e.WithHint("roll it back to a checkpoint, or remove it with: sandtree rm %s", display(rec))
	}
	return e.WithHint("remove it with: sandtree rm %s", display(rec))
}

// display is how messages call a sandbox.
func display(rec store.Sandbox) string {
	if rec.Name != "" {
		return rec.Name
	}
	return rec.ID
}

func (b *sandbox) setFamily(f *family) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	b.fam = f
}

// change changes a record here; it remains to save it.
func (b *sandbox) change(change func(*store.Sandbox)) {
	b.recMu.Lock()
	defer b.recMu.Unlock()
	change(&b.rec)
	b.broadcast()
}
