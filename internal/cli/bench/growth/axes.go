package growth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
)

// axis is something along which times may grow.
type axis struct {
	name, unit, about string
	places            []int // where it is measured, besides its end
	to                int
	flat              bool
	walk              func(context.Context, *walk) error
}

var axes = []axis{
	{"depth", "checkpoints", "depth of the tree, all in one chain", []int{1, 5, 10, 20, 50, 100, 150}, 200, true, chain(keepAll)},
	{"kept", "checkpoints", "checkpoints kept beside each other, below one", []int{1, 5, 10, 20, 50, 100, 200, 500}, 1000, true, chain(keepBeside)},
	{"age", "checkpoints", "checkpoints taken in the sandbox's life, of which the last two are kept", []int{1, 5, 10, 20, 50, 100, 200, 500}, 1000, true, chain(keepTwo)},
	{"search", "checkpoints", "checkpoints taken by a search that rolls back to the last one before each", []int{1, 5, 10, 20, 50, 100}, 200, true, chain(keepBack)},
	{"files", "files", "files in the upper", []int{10, 100, 1000, 3000, 10_000}, 30_000, false, each(func(c *subject.Config, x int) { c.UpperFiles = x })},
	{"heap", "MB", "heap of the process", []int{10, 30, 100, 300, 1000}, 4000, false, each(func(c *subject.Config, x int) {
		c.HeapBytes = int64(x) << 20
		c.DirtyBytes = min(c.DirtyBytes, c.HeapBytes)
	})},
	{"dirty_dense", "KB", "memory that changes between checkpoints, in one piece", []int{100, 1000, 5000, 20_000, 50_000}, 200_000, false, each(func(c *subject.Config, x int) { dirty(c, x, false) })},
	{"dirty_scattered", "KB", "memory that changes between checkpoints, in pages far apart", []int{100, 1000, 5000, 20_000, 50_000}, 200_000, false, each(func(c *subject.Config, x int) { dirty(c, x, true) })},
	{"processes", "processes", "processes that share a heap of 16 MB", []int{1, 4, 16, 32}, 64, false, each(func(c *subject.Config, x int) {
		c.HeapBytes = min(c.HeapBytes, 16<<20)
		c.DirtyBytes = min(c.DirtyBytes, c.HeapBytes)
		c.Processes = x
	})},
	{"width", "copies", "copies made in one fork", []int{1, 10, 50, 100, 300}, 1000, false, wide},
}

// dirty sets what changes, in a heap that is at least twice as large.
func dirty(c *subject.Config, kib int, scattered bool) {
	c.DirtyBytes = max(int64(kib)<<10, 4096)
	c.HeapBytes = max(c.HeapBytes, 2*c.DirtyBytes)
	c.Scattered = scattered
}

// each walks an axis with a new subject at each place.
func each(set func(c *subject.Config, x int)) func(context.Context, *walk) error {
	return func(ctx context.Context, w *walk) error {
		for _, x := range w.places() {
			w.begin(x)
			cfg := w.cfg.Subject
			set(&cfg, x)
			s := sheet{}
			if err := s.place(ctx, w, cfg); err != nil {
				return fmt.Errorf("at %d %s: %w", x, w.axis.unit, err)
			}
			w.point(x, s)
		}
		return nil
	}
}

// place measures a new subject.
func (s sheet) place(ctx context.Context, w *walk, cfg subject.Config) error {
	sub, err := subject.Start(ctx, w.c, cfg)
	if err != nil {
		return err
	}
	defer sub.Close(ctx)
	first, err := sub.Sandbox.Checkpoint(ctx, "") // takes the whole heap
	if err != nil {
		return err
	}
	var last *client.Checkpoint
	for range w.cfg.Samples {
		if last, err = s.checkpoint(ctx, sub); err != nil {
			return err
		}
	}
	return s.sample(ctx, sub, last, first, w.cfg.Samples)
}

// keeper says what becomes of the checkpoints of a walk when another is about
// to be taken.
type keeper func(ctx context.Context, sub *subject.Subject, all []*client.Checkpoint) ([]*client.Checkpoint, error)

// keepAll lets the chain grow.
func keepAll(_ context.Context, _ *subject.Subject, all []*client.Checkpoint) ([]*client.Checkpoint, error) {
	return all, nil
}

// keepBeside goes back to the first, so that the next stands beside the others.
func keepBeside(ctx context.Context, sub *subject.Subject, all []*client.Checkpoint) ([]*client.Checkpoint, error) {
	_, err := sub.Sandbox.Rollback(ctx, all[0].ID)
	return all, err
}

// keepBack goes back to the last, so that each begins a generation of bodies.
func keepBack(ctx context.Context, sub *subject.Subject, all []*client.Checkpoint) ([]*client.Checkpoint, error) {
	_, err := sub.Sandbox.Rollback(ctx, all[len(all)-1].ID)
	return all, err
}

// keepTwo removes all but the last two.
func keepTwo(ctx context.Context, _ *subject.Subject, all []*client.Checkpoint) ([]*client.Checkpoint, error) {
	for len(all) > 2 {
		if err := all[0].Remove(ctx); err != nil {
			return all, err
		}
		all = all[1:]
	}
	return all, nil
}

// chain walks an axis of checkpoints of one sandbox. A place is measured with
// the last checkpoints before it.
func chain(keep keeper) func(context.Context, *walk) error {
	return func(ctx context.Context, w *walk) error {
		sub, err := subject.Start(ctx, w.c, w.cfg.Subject)
		if err != nil {
			return err
		}
		defer sub.Close(ctx)
		first, err := sub.Sandbox.Checkpoint(ctx, "")
		if err != nil {
			return err
		}
		all := []*client.Checkpoint{first}
		taken := 0
		for _, x := range w.places() {
			w.begin(x)
			s := sheet{}
			for taken < x {
				if all, err = keep(ctx, sub, all); err != nil {
					return err
				}
				into := s
				if x-taken > w.cfg.Samples {
					into = sheet{} // too far from the place
				}
				cp, err := into.checkpoint(ctx, sub)
				if err != nil {
					return fmt.Errorf("checkpoint %d: %w", taken+1, err)
				}
				all = append(all, cp)
				taken++
			}
			if err := s.sample(ctx, sub, all[len(all)-1], all[max(len(all)-3, 0)], w.cfg.Samples); err != nil {
				return fmt.Errorf("at %d checkpoints: %w", x, err)
			}
			w.point(x, s)
		}
		return nil
	}
}

// wide makes more and more copies at once.
func wide(ctx context.Context, w *walk) error {
	sub, err := subject.Start(ctx, w.c, w.cfg.Subject)
	if err != nil {
		return err
	}
	defer sub.Close(ctx)
	cp, err := sub.Sandbox.Checkpoint(ctx, "")
	if err != nil {
		return err
	}
	for _, x := range w.places() {
		w.begin(x)
		s := sheet{}
		for range min(w.cfg.Samples, max(1, 100/x)) {
			if err := s.forkMany(ctx, cp, x); err != nil {
				return fmt.Errorf("%d copies: %w", x, err)
			}
		}
		w.point(x, s)
	}
	return nil
}

// forkMany forks n copies in one call. What a copy took is the share of each.
func (s sheet) forkMany(ctx context.Context, cp *client.Checkpoint, n int) (err error) {
	begin := time.Now()
	made, err := cp.Fork(ctx, n)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	s.add("fork_all", took, nil)
	s.add("fork_each", took/time.Duration(n), nil)
	for _, sb := range made.Sandboxes {
		err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx), true))
	}
	return err
}
