// Package tally counts what the examples spend their time on, and compares it
// with fresh starts.
package tally

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sandtree/sandtree/demo/lab"
)

// Tally adds up the times of one run. Its methods may be called from several
// goroutines.
type Tally struct {
	mu          sync.Mutex
	begin       time.Time
	nodes       int
	state, test time.Duration
	calls       map[string]int
	took        map[string]time.Duration
}

// New begins a tally.
func New() *Tally {
	return &Tally{begin: time.Now(), calls: map[string]int{}, took: map[string]time.Duration{}}
}

// State measures something that is done to state: a checkpoint, a rollback, a
// fork.
func (t *Tally) State(what string, do func() error) error {
	begin := time.Now()
	err := do()
	t.mu.Lock()
	defer t.mu.Unlock()
	d := time.Since(begin)
	t.state += d
	t.calls[what]++
	t.took[what] += d
	return err
}

// Test measures a node's work: its patch is applied and its tests run.
func (t *Tally) Test(b *lab.Bench, edits []lab.Edit) (lab.Score, error) {
	begin := time.Now()
	s, err := b.Try(edits)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nodes++
	t.test += time.Since(begin)
	return s, err
}

// Fresh is what the state of a node costs that is made by a fresh start.
type Fresh struct{ State time.Duration }

// MeasureFresh makes a node by a fresh start, some times over: a new sandbox,
// the project copied in, python started, pytest imported, the patches applied,
// the tests run.
func MeasureFresh(ctx context.Context, l lab.Lab, edits []lab.Edit, samples int) (Fresh, error) {
	var f Fresh
	for range samples {
		begin := time.Now()
		b, err := l.Open(ctx)
		if err != nil {
			return f, err
		}
		s, err := b.Try(edits)
		if err = errors.Join(err, b.Close(ctx)); err != nil {
			return f, err
		}
		f.State += time.Since(begin) - time.Duration(s.TestNS)
	}
	return Fresh{f.State / time.Duration(max(samples, 1))}, nil
}

// Print writes the share of state, the nodes a minute, and the same for fresh
// starts with as many sandboxes at a time.
func (t *Tally) Print(w io.Writer, f Fresh) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wall := time.Since(t.begin)
	n := float64(max(t.nodes, 1))
	fmt.Fprintf(w, "\n%d nodes in %.1f s\n", t.nodes, wall.Seconds())
	for _, what := range []string{"checkpoint", "rollback", "fork", "attach"} {
		if c := t.calls[what]; c > 0 {
			fmt.Fprintf(w, "  %-11s %4d  %8.2f ms each\n", what, c, ms(t.took[what])/float64(c))
		}
	}
	fmt.Fprintf(w, "  %-11s %4d  %8.2f ms each\n", "test", t.nodes, ms(t.test)/n)
	work := t.state + t.test
	fmt.Fprintf(w, "state took %.1f%% of the work; %.0f nodes a minute\n", 100*t.state.Seconds()/work.Seconds(), perMinute(t.nodes, wall))
	if f.State > 0 {
		// With the same tests, and as many at a time as in this run.
		fresh := time.Duration(n*float64(f.State)) + t.test
		atATime := max(work.Seconds()/wall.Seconds(), 1)
		fmt.Fprintf(w, "fresh starts: state takes %.1f%% of the work; %.0f nodes a minute (%.0f ms of state a node instead of %.0f)\n",
			100*n*f.State.Seconds()/fresh.Seconds(), perMinute(t.nodes, fresh)*atATime, ms(f.State), ms(t.state)/n)
	}
}

func perMinute(n int, d time.Duration) float64 { return float64(n) / d.Minutes() }

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
