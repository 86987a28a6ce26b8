package engine

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Engine is the engine of one family. Its methods are the verbs of package
// control, which says what they take and return, and are safe for use by many
// goroutines.
type Engine struct {
	family *family
	events control.Events
	log    *slog.Logger

	standbys *standbys
	relief   *relief
	keeper   *keeper
	origins  *origins
	evictor  *evictor

	mu    sync.Mutex
	boxes map[string]*box
	wg    sync.WaitGroup // bodies that end in the background
}

// New makes the engine of a family.
func New(cfg control.Config, events control.Events, log *slog.Logger) (*Engine, error) {
	if err := checkBudget(cfg.CheckpointMemory); err != nil {
		return nil, err
	}
	e := &Engine{events: events, log: log, boxes: map[string]*box{}, origins: newOrigins()}
	var err error
	if e.evictor, err = newEvictor(e, cfg); err != nil {
		return nil, err
	}
	f, err := newFamily(cfg, log)
	if err != nil {
		e.evictor.free()
		return nil, err
	}
	e.family, f.evictor = f, e.evictor
	most := MostStandbys
	if cfg.NoStandbys {
		most = 0
	}
	e.standbys = newStandbys(e, most)
	e.keeper = newKeeper(e, cfg.Durable)
	f.keeper = e.keeper
	e.evictor.start()
	e.relief = newRelief(e)
	return e, nil
}

// Close ends all incarnations and everything else that the engine made, but what
// is durable.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	boxes := slices.Collect(maps.Values(e.boxes))
	e.mu.Unlock()
	e.relief.close()
	e.standbys.close()
	e.keeper.close()
	e.evictor.close()
	var errs []error
	for _, b := range boxes {
		if err := e.end(ctx, b); err != nil && !fault.Is(err, fault.NotFound) {
			errs = append(errs, err)
		}
	}
	e.wg.Wait()
	e.origins.close()
	errs = append(errs, e.family.close())
	e.evictor.free()
	return errors.Join(errs...)
}

// box finds a sandbox.
func (e *Engine) box(id string) (*box, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.boxes[id]
	if b == nil {
		return nil, fault.New(fault.NotFound, "no sandbox %q", id)
	}
	return b, nil
}

// enter adds a sandbox, whose id must be free.
func (e *Engine) enter(b *box) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.boxes[b.id] != nil {
		return fault.New(fault.Exists, "sandbox %s exists already", b.id)
	}
	e.boxes[b.id] = b
	return nil
}

func (e *Engine) forget(b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.boxes[b.id] == b {
		delete(e.boxes, b.id)
	}
}

// Wait waits until all work in the background is done: checkpoints are durable,
// standbys are built, blank bodies stand ready, and bodies that were replaced or
// have died have ended.
func (e *Engine) Wait() {
	e.keeper.wait()
	e.evictor.wait()
	e.standbys.wait()
	e.family.blanks.wait()
	e.wg.Wait()
}

// background runs something that Close waits for.
func (e *Engine) background(f func()) { e.wg.Go(f) }
