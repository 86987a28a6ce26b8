// Command mcts repairs a project by Monte Carlo tree search: a tree whose nodes
// are checkpoints of one sandbox. Each step walks down from the root by UCT,
// rolls the sandbox back to the node it comes to, tries one more patch there,
// keeps what it becomes as a new node, and tells the nodes above what it is
// worth.
//
// What a model would propose are patches of a list here, drawn at random; what
// a state is worth is the share of failing tests that it mends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/demo/lab"
	"github.com/sandtree/sandtree/examples/tally"
)

func main() {
	var (
		socket   = flag.String("socket", socketDefault(), "the daemon's API socket (SANDTREE_SOCKET)")
		template = flag.String("template", "debian", "template with python3 and pytest")
		project  = flag.String("project", lab.ProjectDirectory(), "the project to repair")
		steps    = flag.Int("steps", 40, "nodes at most")
		explore  = flag.Float64("explore", 0.25, "how much is explored rather than used")
		seed     = flag.Uint64("seed", 1, "of the draws")
		fresh    = flag.Int("fresh", 2, "fresh starts that are measured to compare with")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.Dial(*socket)
	if err == nil {
		s := &search{
			lab: lab.Lab{Client: c, Template: *template, Project: *project}, steps: *steps, explore: *explore,
			random: rand.New(rand.NewPCG(*seed, 0)), out: os.Stdout, fresh: *fresh,
		}
		err = s.all(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mcts:", err)
		os.Exit(1)
	}
}

func socketDefault() string {
	if s := os.Getenv("SANDTREE_SOCKET"); s != "" {
		return s
	}
	return "/run/sandtree/default/api.sock"
}

// node is a state of the project, kept as a checkpoint.
type node struct {
	parent     *node
	patch      *lab.Candidate // that made it of its parent; nil at the root
	checkpoint *client.Checkpoint
	score      lab.Score
	untried    []*lab.Candidate
	children   []*node
	visits     int
	sum        float64 // of the values below and here
}

// search is one run. One sandbox is enough: a search goes where it wants by
// rollbacks.
type search struct {
	lab     lab.Lab
	steps   int
	explore float64
	random  *rand.Rand
	out     io.Writer
	fresh   int

	bench *lab.Bench
	root  *node
	at    *node // whose state the sandbox has, or nil
	tally *tally.Tally
}

func (s *search) all(ctx context.Context) (err error) {
	if err := s.lab.Check(); err != nil {
		return err
	}
	if s.bench, err = s.lab.Open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.bench.Close(ctx)) }()
	score, err := s.bench.Try(nil) // imports the project: every node is warm
	if err != nil {
		return err
	}
	s.tally = tally.New()
	if s.root, err = s.keep(ctx, nil, nil, score); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "at the start %d tests fail\n", len(score.Failed))
	best := s.root
	for step := 1; step <= s.steps && len(best.score.Failed) > 0; step++ {
		n, err := s.step(ctx)
		if err != nil {
			return err
		}
		if n == nil {
			break // everything was tried
		}
		if s.value(n.score) > s.value(best.score) {
			best = n
			fmt.Fprintf(s.out, "step %d: %d fail with %v\n", step, len(n.score.Failed), n.names())
		}
	}
	fmt.Fprintf(s.out, "in the end %d tests fail with %v\n", len(best.score.Failed), best.names())
	f, err := tally.MeasureFresh(ctx, s.lab, best.edits(), s.fresh)
	if err != nil {
		return err
	}
	s.tally.Print(s.out, f)
	return nil
}

// step selects, expands, scores and passes the value up. It returns the new
// node, or nil if there is nothing left to try.
func (s *search) step(ctx context.Context) (*node, error) {
	from := s.choose()
	if from == nil {
		return nil, nil
	}
	i := s.random.IntN(len(from.untried))
	patch := from.untried[i]
	from.untried = append(from.untried[:i], from.untried[i+1:]...)
	if s.at != from {
		err := s.tally.State("rollback", func() error {
			_, err := s.bench.Sandbox.Rollback(ctx, from.checkpoint.ID)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	s.at = nil // the patch changes it
	score, err := s.tally.Test(s.bench, patch.Edits)
	if err != nil {
		return nil, err
	}
	n, err := s.keep(ctx, from, patch, score)
	if err != nil {
		return nil, err
	}
	value := s.value(score)
	for up := n; up != nil; up = up.parent {
		up.visits++
		up.sum += value
	}
	return n, nil
}

// keep makes a node of what the sandbox has become. What is worth nothing gets
// no checkpoint, and nothing is tried below it.
func (s *search) keep(ctx context.Context, parent *node, patch *lab.Candidate, score lab.Score) (*node, error) {
	n := &node{parent: parent, patch: patch, score: score}
	if parent != nil {
		parent.children = append(parent.children, n)
		if s.value(score) == 0 {
			return n, nil
		}
	}
	err := s.tally.State("checkpoint", func() (err error) {
		n.checkpoint, err = s.bench.Sandbox.Checkpoint(ctx, "")
		return err
	})
	if err != nil {
		return nil, err
	}
	s.at = n
	for i := range lab.Candidates {
		if !n.has(&lab.Candidates[i]) {
			n.untried = append(n.untried, &lab.Candidates[i])
		}
	}
	return n, nil
}

// choose walks down to a node where something is untried. A branch in which
// nothing is left is not entered.
func (s *search) choose() *node {
	n := s.root
	for !n.widens() {
		var next *node
		var most float64
		for _, c := range n.children {
			if !c.open() {
				continue
			}
			// UCT, Kocsis and Szepesvári 2006.
			uct := c.sum/float64(c.visits) + s.explore*math.Sqrt(math.Log(float64(n.visits))/float64(c.visits))
			if next == nil || uct > most {
				next, most = c, uct
			}
		}
		switch {
		case next != nil:
			n = next
		case len(n.untried) > 0: // wider than it should be, but all that is left
			return n
		default:
			return nil
		}
	}
	return n
}

// widens reports whether a node should get another child: the more often the
// search comes by, the more (progressive widening), so that it also gets deep.
func (n *node) widens() bool {
	return len(n.untried) > 0 && len(n.children) <= int(1.5*math.Sqrt(float64(n.visits)))
}

// open reports whether something is untried at or below a node.
func (n *node) open() bool {
	if len(n.untried) > 0 {
		return true
	}
	for _, c := range n.children {
		if c.open() {
			return true
		}
	}
	return false
}

// value is the share of the tests that fail at the root and pass here; 0 for
// what does not apply, breaks the import or breaks more than it mends.
func (s *search) value(score lab.Score) float64 {
	if score.Error != "" || len(score.Broken) > 0 || s.root == nil {
		return 0
	}
	failing := len(s.root.score.Failed)
	// A state that is as good as the root is worth a little: another patch
	// may need it.
	return max(0.05+0.95*float64(failing-len(score.Failed))/float64(max(failing, 1)), 0)
}

func (n *node) has(c *lab.Candidate) bool {
	for ; n.parent != nil; n = n.parent {
		if n.patch == c {
			return true
		}
	}
	return false
}

func (n *node) names() []string {
	if n.parent == nil {
		return nil
	}
	return append(n.parent.names(), n.patch.Name)
}

func (n *node) edits() []lab.Edit {
	if n.parent == nil {
		return nil
	}
	return append(n.parent.edits(), n.patch.Edits...)
}
