package supervisor

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

// clients are the connected clients, and what they must still be told. It
// never waits for one of them.
type clients struct {
	mu    sync.Mutex
	peers map[*wire.Peer]struct{}
	// ended are the ended sessions whose status no client has recorded.
	ended map[control.SessionRequest]control.Session
}

func newClients() *clients {
	return &clients{
		peers: map[*wire.Peer]struct{}{},
		ended: map[control.SessionRequest]control.Session{},
	}
}

// add lets a client take part, and tells it what others have not recorded.
func (c *clients) add(p *wire.Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peers[p] = struct{}{}
	for _, s := range slices.SortedFunc(maps.Values(c.ended), func(a, b control.Session) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.ID, b.ID))
	}) {
		if !p.Notify(control.EventSessionEnded, s) {
			return // it is gone, or never took one; the next client is told
		}
	}
}

func (c *clients) remove(p *wire.Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.peers, p)
}

// events are what the engine reports to.
func (c *clients) events() control.Events {
	return control.Events{
		SessionEnded: func(s control.Session) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ended[control.SessionRequest{Sandbox: s.Sandbox, Session: s.ID}] = s
			c.tell(control.EventSessionEnded, s)
		},
		SandboxEnded: func(e control.SandboxEnded) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tell(control.EventSandboxEnded, e)
		},
		CheckpointFailed: func(e control.CheckpointFailed) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tell(control.EventCheckpointFailed, e)
		},
		CheckpointKept: func(e control.Checkpoint) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tell(control.EventCheckpointKept, e)
		},
	}
}

func (c *clients) tell(event string, v any) {
	for p := range c.peers {
		p.Notify(event, v)
	}
}

func (c *clients) forgetSession(req control.SessionRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.ended, req)
}

func (c *clients) forgetSandbox(sandbox string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.ended, func(r control.SessionRequest, _ control.Session) bool { return r.Sandbox == sandbox })
}
