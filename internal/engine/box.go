package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/tree"
)

// box is one sandbox.
type box struct {
	id        string
	hostname  string
	created   time.Time
	resources control.Resources
	setuid    bool
	quota     rootfs.Quota
	tree      *tree.Tree[*checkpoint]
	origin    string // the checkpoint it was forked from, see origins; empty: none. Never changes

	// mu is held for reading by what needs the body to stay, and for writing
	// by what stops or replaces it.
	mu         sync.RWMutex
	body       *body // nil: ended
	generation uint64
	removed    bool
	suspended  string // the checkpoint at which it was suspended; empty: it was not

	awaited atomic.Int32 // suspensions that wait for its checkpoints to be durable
	uppers  atomic.Int64 // made so far: their ids are never used again

	sessions sessions
}

// live returns the body; the caller holds mu.
func (b *box) live() (*body, error) {
	switch {
	case b.removed:
		return nil, fault.New(fault.NotFound, "sandbox %s was removed", b.id)
	case b.body == nil && b.suspended != "":
		return nil, fault.New(fault.Conflict, "sandbox %s is suspended", b.id)
	case b.body == nil:
		return nil, fault.New(fault.Conflict, "sandbox %s has ended", b.id).
			WithHint("roll it back to a checkpoint, or remove it")
	}
	return b.body, nil
}

// describeReborn is describe of a sandbox with a new body. Sessions that are
// live go with their descriptors, and are described as they were when those
// were taken: if one has ended since, its end is reported by itself.
func (b *box) describeReborn(live []control.Session) control.Sandbox {
	d := b.describe()
	for i, s := range d.Sessions {
		if k := slices.IndexFunc(live, func(l control.Session) bool { return l.ID == s.ID }); k >= 0 {
			d.Sessions[i] = live[k]
		}
	}
	return d
}

// describe is what the node knows of the sandbox. The caller holds mu.
func (b *box) describe() control.Sandbox {
	return control.Sandbox{
		ID: b.id, Hostname: b.hostname, Created: b.created, Resources: b.resources,
		Generation: b.generation, At: b.tree.At(), Alive: b.body != nil, Suspended: b.suspended, Sessions: b.sessions.list(),
	}
}
