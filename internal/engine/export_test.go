package engine

import (
	"context"
	"time"

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

// Took is what happens when a checkpoint was taken at some time. It returns how long
// after that its standby may be built.
func (e *Engine) Took(sandbox, checkpoint string, at time.Time) (after time.Duration) {
	b, err := e.box(sandbox)
	if err != nil {
		return -1
	}
	e.standbys.took(b, checkpoint, b.tree.Parent(checkpoint), at)
	e.standbys.mu.Lock()
	defer e.standbys.mu.Unlock()
	for _, w := range e.standbys.wishes {
		if w.is(b, checkpoint) && !w.after.IsZero() {
			return w.after.Sub(at)
		}
	}
	return 0
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

// FirstRetry is how long the first pause before what failed is tried again takes.
const FirstRetry = firstRetry

// NoRetry is what [Engine.RetryPause] says when nothing waits to be tried again.
const NoRetry = time.Duration(-1)

// RetryPause is how long what could not be made durable waits in all until it is tried
// again. While it is tried nothing waits.
func (e *Engine) RetryPause() time.Duration {
	e.keeper.mu.Lock()
	defer e.keeper.mu.Unlock()
	for _, l := range e.keeper.retries.lines() {
		if l.timer != nil {
			return l.pause
		}
	}
	return NoRetry
}
