package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/demo/lab"
)

// node is a state of the project: the patches of its path, applied in order.
type node struct {
	parent   *node
	patch    *lab.Candidate // nil at the root
	reply    lab.Score
	children []*node

	checkpoint *client.Checkpoint // nil if it was not worth keeping
	bench      *lab.Bench         // in which it is searched further, or nil
}

// search looks for the patches that make all tests pass.
type search struct {
	c          *client.Client
	lab        lab.Lab
	width      int // nodes searched at a time
	candidates []lab.Candidate

	root    *node
	benches []*lab.Bench

	mu    sync.Mutex
	times times
}

// times adds up what the search spends, by kind.
type times struct {
	nodes                      int
	checkpoints, rollbacks     int
	forks                      int
	checkpoint, rollback, fork time.Duration // as the client waits
	frozen                     time.Duration // part of checkpoint
	tests                      time.Duration
	start                      time.Duration // the one warm start
	wall                       time.Duration
}

// maxSteps bounds a search that finds nothing.
const maxSteps = 40

// run searches the best nodes first, a few at a time, until all tests pass or
// nothing is left to search, and returns the best node.
func (s *search) run(ctx context.Context) (*node, error) {
	begin := time.Now()
	b, err := s.lab.Open(ctx)
	if err != nil {
		return nil, err
	}
	s.benches = append(s.benches, b)
	s.root = &node{bench: b}
	if s.root.reply, err = b.Try(nil); err != nil {
		return nil, err
	}
	s.times.start = time.Since(begin)
	if s.root.checkpoint, err = s.keep(ctx, b, "root"); err != nil {
		return nil, err
	}
	fmt.Printf("sqlparse 0.5.0 with the tests of 0.5.1: %d pass, %d fail\n", s.root.reply.Passed, len(s.root.reply.Failed))
	begin = time.Now()
	defer func() { s.times.wall = time.Since(begin) }()

	best := s.root
	seen := map[string]bool{"": true}
	open := []*node{s.root} // kept and not searched yet, best first
	for step := 1; len(open) > 0 && step <= maxSteps && len(best.reply.Failed) > 0; step++ {
		now := open[:min(len(open), s.width)]
		open = open[len(now):]
		if err := s.branch(ctx, now); err != nil {
			return nil, err
		}
		found, err := s.expandAll(ctx, now)
		if err != nil {
			return nil, err
		}
		for _, n := range found {
			// The same patches in another order are the same state.
			if key := n.setText(); !seen[key] {
				seen[key] = true
				open = append(open, n)
			}
			if worse(best, n) {
				best = n
			}
		}
		slices.SortStableFunc(open, func(a, b *node) int { return cmp.Compare(len(a.reply.Failed), len(b.reply.Failed)) })
		fmt.Printf("step %d: %d nodes tried, %d worth searching; best: %d fail with %s\n",
			step, s.times.nodes, len(open), len(best.reply.Failed), best.pathText())
	}
	return best, nil
}

// expandAll tries all candidates on some nodes, each node in its own sandbox
// at the same time, and returns the promising children.
func (s *search) expandAll(ctx context.Context, nodes []*node) ([]*node, error) {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = s.expand(ctx, n) })
	}
	wg.Wait()
	var found []*node
	for _, n := range nodes {
		for _, c := range n.children {
			if c.checkpoint != nil {
				found = append(found, c)
			}
		}
	}
	return found, errors.Join(errs...)
}

// expand tries each candidate on a node: apply, score, keep it if it breaks
// nothing, and roll back.
func (s *search) expand(ctx context.Context, n *node) error {
	for i := range s.candidates {
		c := &s.candidates[i]
		if slices.Contains(n.path(), c) {
			continue
		}
		child := &node{parent: n, patch: c}
		var err error
		if child.reply, err = s.score(n.bench, *c); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		n.children = append(n.children, child)
		if promising(child) {
			if child.checkpoint, err = s.keep(ctx, n.bench, ""); err != nil {
				return err
			}
		}
		if err := s.back(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// promising reports whether a node is worth searching further: it fixes
// something, or at least applies and breaks nothing, for the next patch may
// need it.
func promising(n *node) bool {
	if n.reply.Error != "" || len(n.reply.Broken) > 0 {
		return false
	}
	for _, f := range n.reply.Failed {
		if !slices.Contains(n.parent.reply.Failed, f) {
			return false
		}
	}
	return true
}

func worse(a, b *node) bool { return len(b.reply.Failed) < len(a.reply.Failed) }

// score applies a candidate and runs the tests.
func (s *search) score(b *lab.Bench, c lab.Candidate) (lab.Score, error) {
	begin := time.Now()
	r, err := b.Try(c.Edits)
	s.add(func(t *times) { t.nodes++; t.tests += time.Since(begin) })
	return r, err
}

// keep takes a checkpoint.
func (s *search) keep(ctx context.Context, b *lab.Bench, name string) (*client.Checkpoint, error) {
	begin := time.Now()
	cp, err := b.Sandbox.Checkpoint(ctx, name)
	if err != nil {
		return nil, err
	}
	s.add(func(t *times) {
		t.checkpoints++
		t.checkpoint += time.Since(begin)
		t.frozen += time.Duration(cp.FrozenNS)
	})
	return cp, nil
}

// back rolls a node's sandbox back to the node.
func (s *search) back(ctx context.Context, n *node) error {
	begin := time.Now()
	_, err := n.bench.Sandbox.Rollback(ctx, n.checkpoint.ID)
	s.add(func(t *times) { t.rollbacks++; t.rollback += time.Since(begin) })
	return err
}

// branch gives nodes that have none sandboxes of their own, forked from their checkpoints,
// in which each node's own checkpoint is the root of what follows.
func (s *search) branch(ctx context.Context, nodes []*node) error {
	for _, n := range nodes {
		if n.bench != nil {
			continue // the root
		}
		begin := time.Now()
		made, err := n.checkpoint.Fork(ctx, 1)
		if err != nil {
			return err
		}
		b, err := lab.Join(ctx, made.Sandboxes[0])
		if err != nil {
			return errors.Join(err, made.Sandboxes[0].Remove(ctx, true))
		}
		s.add(func(t *times) { t.forks++; t.fork += time.Since(begin) })
		n.bench = b
		s.benches = append(s.benches, b)
		// A rollback goes to a checkpoint of the sandbox's own tree.
		if n.checkpoint, err = s.keep(ctx, b, "node"); err != nil {
			return err
		}
	}
	return nil
}

func (s *search) add(f func(*times)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.times)
}

// close removes all sandboxes.
func (s *search) close(ctx context.Context) error {
	var errs []error
	for _, b := range s.benches {
		errs = append(errs, b.Close(ctx))
	}
	return errors.Join(errs...)
}

// path is the patches that make the node, in order.
func (n *node) path() []*lab.Candidate {
	if n.parent == nil {
		return nil
	}
	return append(n.parent.path(), n.patch)
}

func (n *node) names() []string {
	var names []string
	for _, c := range n.path() {
		names = append(names, c.Name)
	}
	return names
}

// setText is the same for all nodes with the same patches.
func (n *node) setText() string { return strings.Join(slices.Sorted(slices.Values(n.names())), " ") }

func (n *node) pathText() string {
	if n.parent == nil {
		return "no patch"
	}
	return strings.Join(n.names(), " + ")
}
