package engine

import (
	"context"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Relieve is what happens under memory pressure.
func (e *Engine) Relieve() { e.relieve() }

// Unload leaves what is durable of a sandbox on disk alone. It returns how many
// checkpoints that are.
func (e *Engine) Unload(sandbox string) (n int) {
	b, err := e.box(sandbox)
	if err != nil {
		return 0
	}
	e.standbys.drop(b, "")
	for _, x := range b.tree.Nodes() {
		if x.Data.unload() {
			n++
		}
	}
	return n
}

// MostGenerations is how far forks of forks of zygotes go.
const MostGenerations = mostGenerations

// Generation is the highest of a checkpoint's zygotes.
func (e *Engine) Generation(box, id string) (most int) {
	_, c, release, err := e.use(control.CheckpointRef{Sandbox: box, Checkpoint: id})
	if err != nil {
		return -1
	}
	defer release()
	if err := c.acquire(context.Background()); err != nil {
		return -1
	}
	defer c.release()
	for _, z := range c.zygotes {
		most = max(most, z.Generation())
	}
	return most
}
