// Command demo repairs a real project by searching over candidate patches as
// a tree: release 0.5.0 of sqlparse, scored by the tests of release 0.5.1,
// which fixed four bugs in it.
//
// One sandbox holds a warm test process that has pytest and the project
// imported. A node of the search is a checkpoint of it, process included: a
// patch is tried on it, scored, and undone by a rollback; what helped is kept
// as a checkpoint below, and the most promising, wherever in the tree, are
// forked into sandboxes of their own and searched further. At the end the demo prints the tree, what
// the time went to, and what the same search costs when every node is made by
// a fresh start.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/demo/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		if hint := client.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, " ", hint)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	var (
		socket   = flag.String("socket", "", "the daemon's API socket")
		template = flag.String("template", "debian", "template with python3 and pytest")
		project  = flag.String("project", lab.ProjectDirectory(), "directory with sqlparse/ of 0.5.0 and tests/ of 0.5.1")
		width    = flag.Int("width", 2, "how many nodes are searched at a time")
		short    = flag.Bool("short", false, "a search of a minute or less: fewer candidates, one node at a time")
		samples  = flag.Int("samples", 3, "for how many nodes the fresh start is measured")
	)
	flag.Parse()
	if *socket == "" || flag.NArg() > 0 || *width < 1 {
		return errors.New("--socket is needed; make demo gives it")
	}
	at := lab.Lab{Template: *template, Project: *project}
	if err := at.Check(); err != nil {
		return err
	}
	c, err := client.Dial(*socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()

	at.Client = c
	s := &search{c: c, lab: at, width: *width, candidates: lab.Candidates}
	if *short {
		s.width = 1
		s.candidates = shortCandidates()
	}
	defer func() { err = errors.Join(err, s.close(context.WithoutCancel(ctx))) }()
	best, err := s.run(ctx)
	if err != nil {
		return err
	}
	s.printTree(os.Stdout)
	fresh, err := s.measureFresh(ctx, best, *samples)
	if err != nil {
		return err
	}
	s.printTimes(os.Stdout, fresh)
	if len(best.reply.Failed) > 0 {
		return fmt.Errorf("no repair was found: %d tests still fail", len(best.reply.Failed))
	}
	fmt.Printf("\nrepaired: all %d tests pass with %s\n", best.reply.Passed, best.pathText())
	return nil
}

func shortCandidates() []lab.Candidate {
	var some []lab.Candidate
	for _, c := range lab.Candidates {
		if c.Short {
			some = append(some, c)
		}
	}
	return some
}
