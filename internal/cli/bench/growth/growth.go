// Package growth measures how the times of checkpoint, rollback and fork grow
// along an axis: the depth of a tree, the checkpoints that are kept, the age
// of a sandbox, the files in its upper, its heap, what changes, its processes,
// the copies that are made.
//
// An axis is walked from small to large. At each place some checkpoints,
// rollbacks and forks are taken; the medians of their times, and of the stages
// that the daemon reports, are a [Point].
package growth

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/quantile"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
	"github.com/sandtree/sandtree/internal/fault"
)

// Config says what is measured.
type Config struct {
	// Axes by name; none: all.
	Axes []string
	// Max ends each axis there, in the axis's own unit; 0: its full length.
	Max int
	// Samples are taken of each time at each place.
	Samples int
	// Subject is what is checkpointed, where the axis does not say otherwise.
	Subject subject.Config
	// OnPlace, if set, is called when a place of an axis is begun.
	OnPlace func(axis string, x, to int)
}

// Point is what was measured at one place of an axis.
type Point struct {
	X int `json:"x"`
	// MS are the times by name: checkpoint_frozen, checkpoint, rollback,
	// rollback_standby, fork; width has fork_all in place of them. A
	// rollback is one that found no standby.
	MS map[string]float64 `json:"ms"`
	// StageMS are the stages of each time by "time/stage".
	StageMS map[string]float64 `json:"stage_ms,omitempty"`
}

// Curve is an axis that was measured.
type Curve struct {
	Axis   string  `json:"axis"`
	Unit   string  `json:"unit"`
	About  string  `json:"about"`
	Points []Point `json:"points"`
	// Flat says that times are meant not to grow along this axis.
	Flat bool `json:"flat"`
	// Growth compares the ends.
	Growth []Growth `json:"growth"`
	// Error says why the axis ends early.
	Error string `json:"error,omitempty"`
}

// Names of all axes.
func Names() []string {
	var names []string
	for _, a := range axes {
		names = append(names, a.name)
	}
	return names
}

// Run measures the axes that are wanted. An axis that cannot be walked to its
// end has its Error set, with what was measured so far.
func Run(ctx context.Context, c *client.Client, cfg Config) ([]Curve, error) {
	for _, name := range cfg.Axes {
		if !slices.Contains(Names(), name) {
			return nil, fault.New(fault.Invalid, "bench growth: there is no axis %q", name).WithHint("axes: %s", strings.Join(Names(), " "))
		}
	}
	var curves []Curve
	for _, a := range axes {
		if len(cfg.Axes) > 0 && !slices.Contains(cfg.Axes, a.name) {
			continue
		}
		curve := Curve{Axis: a.name, Unit: a.unit, About: a.about, Flat: a.flat, Points: []Point{}}
		w := &walk{c: c, cfg: cfg, axis: a, curve: &curve}
		if err := a.walk(ctx, w); err != nil {
			curve.Error = err.Error()
		}
		curve.Growth = compare(curve)
		curves = append(curves, curve)
		if ctx.Err() != nil {
			return curves, ctx.Err()
		}
	}
	return curves, nil
}

// walk is the way along one axis.
type walk struct {
	c     *client.Client
	cfg   Config
	axis  axis
	curve *Curve
}

// places of the axis, up to the end that is wanted.
func (w *walk) places() []int {
	to := w.axis.to
	if w.cfg.Max > 0 {
		to = min(to, w.cfg.Max)
	}
	var all []int
	for _, x := range w.axis.places {
		if x < to {
			all = append(all, x)
		}
	}
	return append(all, to)
}

// begin says that a place is begun.
func (w *walk) begin(x int) {
	if w.cfg.OnPlace != nil {
		ps := w.places()
		w.cfg.OnPlace(w.axis.name, x, ps[len(ps)-1])
	}
}

// sheet collects times and stages at one place.
type sheet map[string][]time.Duration

func (s sheet) add(name string, d time.Duration, stages map[string]int64) {
	s[name] = append(s[name], d)
	for stage, ns := range stages {
		s[name+"/"+stage] = append(s[name+"/"+stage], time.Duration(ns))
	}
}

// point ends a place.
func (w *walk) point(x int, s sheet) {
	p := Point{X: x, MS: map[string]float64{}, StageMS: map[string]float64{}}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		m := p.MS
		if strings.Contains(name, "/") {
			m = p.StageMS
		}
		m[name] = quantile.MS(s[name], 50)
	}
	w.curve.Points = append(w.curve.Points, p)
}

// checkpoint changes the subject and takes a checkpoint.
func (s sheet) checkpoint(ctx context.Context, sub *subject.Subject) (*client.Checkpoint, error) {
	if err := sub.Tell("dirty"); err != nil {
		return nil, err
	}
	begin := time.Now()
	cp, err := sub.Sandbox.Checkpoint(ctx, "")
	if err != nil {
		return nil, err
	}
	s.add("checkpoint", time.Since(begin), cp.StageNS)
	s.add("checkpoint_frozen", time.Duration(cp.FrozenNS), nil)
	return cp, nil
}

// rollback changes the subject and rolls it back.
func (s sheet) rollback(ctx context.Context, sub *subject.Subject, to *client.Checkpoint) error {
	if err := sub.Tell("dirty"); err != nil {
		return err
	}
	begin := time.Now()
	r, err := sub.Sandbox.Rollback(ctx, to.ID)
	if err != nil {
		return err
	}
	if err := sub.Tell("ping"); err != nil {
		return err
	}
	name := "rollback_standby"
	if _, whole := r.StageNS["boot"]; whole {
		name = "rollback"
	}
	s.add(name, time.Since(begin), r.StageNS)
	return nil
}

// fork makes a copy, asks it and removes it.
func (s sheet) fork(ctx context.Context, cp *client.Checkpoint) error {
	begin := time.Now()
	made, err := cp.Fork(ctx, 1)
	if err != nil {
		return err
	}
	sb := made.Sandboxes[0]
	defer func() { _ = sb.Remove(context.WithoutCancel(ctx), true) }()
	v, err := subject.Join(ctx, made.Sessions[0])
	if err != nil {
		return err
	}
	defer v.Close()
	if err := v.Tell("ping"); err != nil {
		return err
	}
	s.add("fork", time.Since(begin), nil)
	return nil
}

// sample takes all times at a place whose last checkpoint is at, and whose
// other is elsewhere, so that a rollback to it finds no standby.
func (s sheet) sample(ctx context.Context, sub *subject.Subject, at, elsewhere *client.Checkpoint, n int) error {
	for range n {
		for _, to := range []*client.Checkpoint{elsewhere, at} {
			if err := s.rollback(ctx, sub, to); err != nil {
				return fmt.Errorf("rollback: %w", err)
			}
		}
		if err := s.fork(ctx, at); err != nil {
			return fmt.Errorf("fork: %w", err)
		}
	}
	return nil
}
