package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/sandtree/sandtree/demo/lab"
)

// printTree draws what was tried: how many tests fail at each node. Nodes that
// were searched further are marked *, those that broke something x.
func (s *search) printTree(w io.Writer) {
	fmt.Fprintf(w, "\nsqlparse 0.5.0%*d fail\n", 34, len(s.root.reply.Failed))
	s.drawChildren(w, s.root, "")
}

func (s *search) drawChildren(w io.Writer, n *node, indent string) {
	for i, c := range n.children {
		branch, below := "├─ ", "│  "
		if i == len(n.children)-1 {
			branch, below = "└─ ", "   "
		}
		score := fmt.Sprintf("%d fail", len(c.reply.Failed))
		if c.reply.Error != "" {
			score = "does not apply"
		} else if len(c.reply.Broken) > 0 {
			score = "breaks the import"
		}
		mark := " "
		switch {
		case c.bench != nil:
			mark = "*"
		case !promising(c):
			mark = "x"
		}
		label := indent + branch + mark + " " + c.patch.Name
		fmt.Fprintf(w, "%s%*s%s\n", label, max(1, 46-len([]rune(label))), "", score)
		s.drawChildren(w, c, indent+below)
	}
}

// fresh is what a node costs that is made by a fresh start.
type fresh struct {
	samples     int
	state, test time.Duration // of one node
}

// measureFresh makes nodes of the best path by a fresh start each: a new
// sandbox, the project copied in, python started, pytest imported, the path's
// patches applied, the tests run.
func (s *search) measureFresh(ctx context.Context, best *node, samples int) (fresh, error) {
	var f fresh
	path := best.path()
	for i := range samples {
		var edits []lab.Edit
		for _, p := range path[:min(i+1, len(path))] {
			edits = append(edits, p.Edits...)
		}
		begin := time.Now()
		b, err := s.lab.Open(ctx)
		if err != nil {
			return f, err
		}
		r, err := b.Try(edits)
		if err == nil && r.Error != "" {
			err = fmt.Errorf("fresh start: %s", r.Error)
		}
		if cerr := b.Close(ctx); err == nil {
			err = cerr
		}
		if err != nil {
			return f, err
		}
		f.samples++
		f.test += time.Duration(r.TestNS)
		f.state += time.Since(begin) - time.Duration(r.TestNS)
	}
	if f.samples > 0 {
		f.test /= time.Duration(f.samples)
		f.state /= time.Duration(f.samples)
	}
	return f, nil
}

// printTimes compares what state cost with what tests cost, and with the same
// search by fresh starts.
func (s *search) printTimes(w io.Writer, f fresh) {
	t := s.times
	state := t.checkpoint + t.rollback + t.fork
	fmt.Fprintf(w, "\n%d nodes tried in %.1f s, up to %d at a time, after one start of %.1f s\n", t.nodes, t.wall.Seconds(), s.width, t.start.Seconds())
	row := func(what string, n int, sum time.Duration, note string) {
		fmt.Fprintf(w, "  %-12s %4d  %9.1f ms in all  %7.2f ms each%s\n", what, n, ms(sum), ms(sum)/float64(max(n, 1)), note)
	}
	row("checkpoints", t.checkpoints, t.checkpoint, fmt.Sprintf(", of which frozen %.2f ms", ms(t.frozen)/float64(max(t.checkpoints, 1))))
	row("rollbacks", t.rollbacks, t.rollback, "")
	row("forks", t.forks, t.fork, ", to the copy's attached test process")
	row("tests", t.nodes, t.tests, "")
	fmt.Fprintf(w, "  state took %.1f%% of the work: %.2f ms a node beside %.0f ms of tests\n",
		100*state.Seconds()/(state+t.tests).Seconds(), ms(state)/float64(max(t.nodes, 1)), ms(t.tests)/float64(max(t.nodes, 1)))
	if f.samples == 0 {
		return
	}
	n := time.Duration(t.nodes)
	fmt.Fprintf(w, "\nwith a fresh start for every node (measured on %d): %.0f ms of state a node and %.0f ms of tests,\n", f.samples, ms(f.state), ms(f.test))
	fmt.Fprintf(w, "  for %d nodes %.1f s of work instead of %.1f s; state costs %.0f times as much\n",
		t.nodes, (n * (f.state + f.test)).Seconds(), (state + t.tests).Seconds(), (n*f.state).Seconds()/state.Seconds())
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
