// Package bench measures what a user waits for, over the API, and beside each
// figure its floor: the raw system calls that no implementation can do
// without, taken in the same run on the same machine. Times move with the
// load; the ratio to the floor is what can be compared.
//
// Its parts: subject has the sandboxes that are measured, load the neighbours
// that work meanwhile, peer other programs of the same kind, growth the axes
// along which times may grow, and plot draws them.
package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/load"
	"github.com/sandtree/sandtree/internal/cli/bench/quantile"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
	"github.com/sandtree/sandtree/internal/fault"
)

// Config says what is measured, and how often.
type Config struct {
	// N is how often each figure is taken; figures that take long are taken
	// less often, and say so.
	N int
	// Subject is what is checkpointed.
	Subject subject.Config
	// Only are the names of the figures that are taken; none: all.
	Only []string
	// Neighbour keeps a second sandbox busy meanwhile.
	Neighbour bool
	// Busy takes some figures a second time while other families work,
	// output floods and images are written, with "_busy" in their names.
	Busy bool
	// Scratch is a directory for files of the floors.
	Scratch string
	// OnStart, if set, is called when a figure begins.
	OnStart func(name string)
}

// Result is one figure. Times are in milliseconds.
type Result struct {
	Name  string  `json:"name"`
	About string  `json:"about"`
	P50   float64 `json:"p50_ms,omitempty"`
	P95   float64 `json:"p95_ms,omitempty"`
	P99   float64 `json:"p99_ms,omitempty"`
	// Floor is the median of the raw system calls, FloorAbout which. Zero: a
	// peer's figure has none.
	Floor      float64 `json:"floor_ms,omitempty"`
	FloorAbout string  `json:"floor_about,omitempty"`
	// Figures of memory have these in place of times.
	MiB      float64 `json:"p50_mib,omitempty"`
	FloorMiB float64 `json:"floor_mib,omitempty"`
	N        int     `json:"n"`
	// SlowestStageNS are the stages of the slowest sample, where they are
	// known.
	SlowestStageNS map[string]int64 `json:"slowest_stage_ns,omitempty"`
	// Error says why there is no figure.
	Error string `json:"error,omitempty"`
}

// runner is one run.
type runner struct {
	c      *client.Client
	cfg    Config
	floors *floors
}

// Names of all figures, in the order of the table.
func Names() []string {
	var names []string
	for _, m := range measurements {
		for _, f := range m.figures {
			names = append(names, f.name)
		}
	}
	return names
}

// Run takes the figures. One that cannot be taken has its Error set and keeps
// no other from being taken; the error that is returned is of the run itself.
func Run(ctx context.Context, c *client.Client, cfg Config) ([]Result, error) {
	for _, name := range cfg.Only {
		if !slices.Contains(Names(), name) {
			return nil, fault.New(fault.Invalid, "bench: there is no figure %q", name).WithHint("figures: %s", strings.Join(Names(), " "))
		}
	}
	f, err := openFloors(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("bench: prepare the floors: %w", err)
	}
	defer f.close()
	r := &runner{c: c, cfg: cfg, floors: f}
	if cfg.Neighbour {
		l, err := load.CPU(ctx, c, cfg.Subject.Template)
		if err != nil {
			return nil, fmt.Errorf("bench: busy neighbour: %w", err)
		}
		defer l.Stop()
	}
	results := r.all(ctx, "", func(measurement) bool { return true })
	if cfg.Busy && ctx.Err() == nil {
		l, err := load.All(ctx, c, cfg.Subject.Template)
		if err != nil {
			return results, fmt.Errorf("bench: busy neighbours: %w", err)
		}
		results = append(results, r.all(ctx, "_busy", func(m measurement) bool { return m.busy })...)
		l.Stop()
		if err := l.Err(); err != nil {
			return results, fmt.Errorf("bench: busy neighbours: %w", err)
		}
	}
	return results, ctx.Err()
}

// all takes the measurements that are wanted, until the context ends.
func (r *runner) all(ctx context.Context, suffix string, want func(measurement) bool) []Result {
	var results []Result
	for _, m := range measurements {
		if ctx.Err() == nil && want(m) && r.wanted(m) {
			results = append(results, r.measure(ctx, m, suffix)...)
		}
	}
	return results
}

func (r *runner) wanted(m measurement) bool {
	return len(r.cfg.Only) == 0 || slices.ContainsFunc(m.figures, func(f figure) bool { return slices.Contains(r.cfg.Only, f.name) })
}

// measure takes the figures of one measurement and their floors.
func (r *runner) measure(ctx context.Context, m measurement, suffix string) []Result {
	if r.cfg.OnStart != nil {
		r.cfg.OnStart(m.figures[0].name + suffix)
	}
	took, err := m.take(ctx, r)
	var results []Result
	for i, f := range m.figures {
		if len(r.cfg.Only) > 0 && !slices.Contains(r.cfg.Only, f.name) {
			continue
		}
		res := Result{Name: f.name + suffix, About: f.about, FloorAbout: f.floorAbout}
		if err == nil && (len(took) <= i || len(took[i].values) == 0) {
			err = fmt.Errorf("nothing was measured")
		}
		if err == nil {
			err = r.fill(&res, f, took[i])
		}
		if err != nil {
			res.Error = err.Error()
		}
		results = append(results, res)
	}
	return results
}

// fill writes the samples of a figure, and its floor, into a result.
func (r *runner) fill(res *Result, f figure, s samples) error {
	res.N = len(s.values)
	if f.memory {
		// A sample is bytes here.
		res.MiB, res.FloorMiB = mib(s.values), mib(s.floor)
		if res.MiB <= 0 || res.FloorMiB <= 0 {
			return fmt.Errorf("the machine's other work changes its memory more than this")
		}
		return nil
	}
	res.P50, res.P95, res.P99 = quantile.MS(s.values, 50), quantile.MS(s.values, 95), quantile.MS(s.values, 99)
	if len(s.stages) == len(s.values) {
		slowest := 0
		for i, v := range s.values {
			if v > s.values[slowest] {
				slowest = i
			}
		}
		res.SlowestStageNS = s.stages[slowest]
	}
	if f.floor != nil {
		for range min(r.cfg.N, len(s.values)) {
			d, err := f.floor(r.floors)
			if err != nil {
				return fmt.Errorf("floor: %w", err)
			}
			s.floor = append(s.floor, d)
		}
	}
	res.Floor = quantile.MS(s.floor, 50)
	return nil
}

// mib is the median of numbers of bytes, in MiB.
func mib(bytes []time.Duration) float64 { return quantile.MS(bytes, 50) * 1e6 / (1 << 20) }
