// Command bestofn repairs a project by best-of-N: in each round N copies are
// forked from the best state so far, each tries a patch of its own, and the
// best of them is where the next round begins.
//
// What a model would propose is drawn at random here from a list of patches.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/demo/lab"
	"github.com/sandtree/sandtree/examples/tally"
)

func main() {
	var (
		socket   = flag.String("socket", socketDefault(), "the daemon's API socket (SANDTREE_SOCKET)")
		template = flag.String("template", "debian", "template with python3 and pytest")
		project  = flag.String("project", lab.ProjectDirectory(), "the project to repair")
		n        = flag.Int("n", 4, "copies in each round")
		rounds   = flag.Int("rounds", 12, "rounds at most")
		seed     = flag.Uint64("seed", 1, "of the proposals")
		fresh    = flag.Int("fresh", 2, "fresh starts that are measured to compare with")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := client.Dial(*socket)
	if err == nil {
		r := &run{
			lab: lab.Lab{Client: c, Template: *template, Project: *project}, n: *n, rounds: *rounds,
			random: rand.New(rand.NewPCG(*seed, 0)), out: os.Stdout, fresh: *fresh,
		}
		err = r.all(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bestofn:", err)
		os.Exit(1)
	}
}

func socketDefault() string {
	if s := os.Getenv("SANDTREE_SOCKET"); s != "" {
		return s
	}
	return "/run/sandtree/default/api.sock"
}

// run is one search.
type run struct {
	lab       lab.Lab
	n, rounds int
	random    *rand.Rand
	out       io.Writer
	fresh     int
	tally     *tally.Tally
}

// attempt is a copy that has tried a patch.
type attempt struct {
	bench *lab.Bench
	patch lab.Candidate
	score lab.Score
}

// all prepares one warm sandbox and goes from round to round.
func (r *run) all(ctx context.Context) (err error) {
	if err := r.lab.Check(); err != nil {
		return err
	}
	best, err := r.lab.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, best.Close(ctx)) }()
	score, err := best.Try(nil) // imports the project: every copy is warm
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "at the start %d tests fail\n", len(score.Failed))
	r.tally = tally.New()
	var path []lab.Edit
	var names []string
	for round := 1; round <= r.rounds && len(score.Failed) > 0; round++ {
		won, err := r.round(ctx, best, names)
		if err != nil {
			return err
		}
		fmt.Fprintf(r.out, "round %d: %s, %d fail\n", round, won.patch.Name, len(won.score.Failed))
		if !better(won.score, score) {
			// Nothing helped: the copy is dropped and other patches are drawn.
			if err := won.bench.Close(ctx); err != nil {
				return err
			}
			continue
		}
		// The best copy takes the place of the sandbox that it came from.
		old := best
		best, score = won.bench, won.score
		path, names = append(path, won.patch.Edits...), append(names, won.patch.Name)
		if err := old.Close(ctx); err != nil {
			return err
		}
	}
	return r.report(ctx, score, names, path)
}

// round forks n copies of the best state, lets each try a patch, and returns
// the best. The others are removed.
func (r *run) round(ctx context.Context, from *lab.Bench, done []string) (*attempt, error) {
	patches := r.propose(done)
	var made client.ForkResult
	err := r.tally.State("fork", func() (err error) {
		// A fork of a sandbox takes a checkpoint of it first. The copies
		// share its memory and files until they write.
		made, err = from.Sandbox.Fork(ctx, len(patches))
		return err
	})
	if err != nil {
		return nil, err
	}
	attempts := make([]*attempt, len(patches))
	errs := make([]error, len(patches))
	var wg sync.WaitGroup
	turns := make(chan struct{}, 2) // tests that run at a time
	for i, sb := range made.Sandboxes {
		wg.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			attempts[i], errs[i] = r.attempt(ctx, sb, patches[i])
		})
	}
	wg.Wait()
	best := slices.MinFunc(attempts, func(a, b *attempt) int { return value(b.score) - value(a.score) })
	for i, a := range attempts {
		if a != best {
			errs[i] = errors.Join(errs[i], a.bench.Close(ctx))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, best.bench.Close(ctx))
	}
	return best, nil
}

// attempt speaks to the copy of the warm test process, and has it try a patch.
// The copy is in what is returned, also with an error.
func (r *run) attempt(ctx context.Context, sb *client.Sandbox, patch lab.Candidate) (*attempt, error) {
	a := &attempt{bench: &lab.Bench{Sandbox: sb}, patch: patch}
	err := r.tally.State("attach", func() error {
		b, err := lab.Join(ctx, sb)
		if err == nil {
			a.bench = b
		}
		return err
	})
	if err == nil {
		a.score, err = r.tally.Test(a.bench, patch.Edits)
	}
	return a, err
}

// propose draws n patches that are not in yet.
func (r *run) propose(done []string) []lab.Candidate {
	var left []lab.Candidate
	for _, i := range r.random.Perm(len(lab.Candidates)) {
		if c := lab.Candidates[i]; !slices.Contains(done, c.Name) {
			left = append(left, c)
		}
	}
	return left[:min(r.n, len(left))]
}

// value is what a state is worth: tests that pass. A patch that does not apply
// or breaks the import is worth nothing.
func value(s lab.Score) int {
	if s.Error != "" || len(s.Broken) > 0 {
		return 0
	}
	return s.Passed
}

func better(a, b lab.Score) bool { return value(a) > value(b) }

func (r *run) report(ctx context.Context, score lab.Score, names []string, path []lab.Edit) error {
	fmt.Fprintf(r.out, "in the end %d tests fail with %v\n", len(score.Failed), names)
	f, err := tally.MeasureFresh(ctx, r.lab, path, r.fresh)
	if err != nil {
		return err
	}
	r.tally.Print(r.out, f)
	return nil
}
