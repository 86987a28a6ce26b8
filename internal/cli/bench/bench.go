// Package bench measures what a user waits for, over the API, and beside each
// figure its floor: the raw system calls that no implementation can do
// without, taken in the same run on the same machine. Times move with the
// load; the ratio to the floor is what can be compared.
package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandtree/sandtree/client"
)

// Config says what is measured, and how often.
type Config struct {
	// N is how often each figure is taken.
	N int
	// Template of the sandboxes; it must have python3.
	Template string
	// HeapBytes is the heap of the process that is checkpointed, DirtyBytes
	// and DirtyFiles (of 4 KiB) what it changes between two checkpoints.
	HeapBytes, DirtyBytes int64
	DirtyFiles            int
	// Neighbour keeps a second sandbox busy meanwhile.
	Neighbour bool
	// Scratch is a directory for a file system of the floors' own.
	Scratch string
	// OnStart, if set, is called when a figure begins.
	OnStart func(name string)
}

// Result is one figure. Times are in milliseconds.
type Result struct {
	Name  string  `json:"name"`
	About string  `json:"about"`
	P50   float64 `json:"p50_ms"`
	P95   float64 `json:"p95_ms"`
	P99   float64 `json:"p99_ms"`
	// Floor is the median of the raw system calls, FloorAbout which.
	Floor      float64 `json:"floor_ms"`
	FloorAbout string  `json:"floor_about"`
	N          int     `json:"n"`
	// Error says why there is no figure.
	Error string `json:"error,omitempty"`
}

// figure is something to measure.
type figure struct {
	name, about string
	take        func(ctx context.Context, r *runner) ([]time.Duration, error)
	floorAbout  string
	floor       func(f *floors) (time.Duration, error)
}

// figures in the order of the table.
var figures = []figure{
	{"create", "create a sandbox and run true in it", takeCreate, "clone into new namespaces, exec true", (*floors).namespaces},
	{"exec", "run true in a sandbox", takeExec, "fork and exec true", (*floors).exec},
	{"checkpoint_frozen", "time the processes stand still for a checkpoint", takeCheckpoint, "process_vm_readv of the dirty bytes, snapshot of the dirty files", (*floors).capture},
	{"rollback", "roll back, to the first reply of the process", takeRollback, "fork of the heap, snapshot of the files", (*floors).restore},
	{"rollback_standby", "the same after 200 ms of work, when a standby is ready", takeRollbackStandby, "fork of the heap, snapshot of the files", (*floors).restore},
	{"fork", "fork, to the first reply of the copy", takeFork, "fork of the heap, snapshot of the files", (*floors).restore},
}

// runner is one run.
type runner struct {
	c   *client.Client
	cfg Config
}

// Run takes all figures. One that cannot be taken has its Error set and keeps
// no other from being taken; the error that is returned is of the run itself.
func Run(ctx context.Context, c *client.Client, cfg Config) ([]Result, error) {
	f, err := openFloors(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("bench: prepare the floors: %w", err)
	}
	defer f.close()
	r := &runner{c: c, cfg: cfg}
	if cfg.Neighbour {
		stop, err := r.neighbour(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench: busy neighbour: %w", err)
		}
		defer stop()
	}
	var results []Result
	for _, fig := range figures {
		if cfg.OnStart != nil {
			cfg.OnStart(fig.name)
		}
		results = append(results, r.measure(ctx, fig, f))
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
	}
	return results, nil
}

// measure takes one figure and its floor.
func (r *runner) measure(ctx context.Context, fig figure, f *floors) Result {
	res := Result{Name: fig.name, About: fig.about, FloorAbout: fig.floorAbout}
	took, err := fig.take(ctx, r)
	if err == nil && len(took) == 0 {
		err = fmt.Errorf("nothing was measured")
	}
	if err != nil {
		res.Error = err.Error()
		return res
	}
	res.N = len(took)
	res.P50, res.P95, res.P99 = percentile(took, 50), percentile(took, 95), percentile(took, 99)
	var floor []time.Duration
	for range r.cfg.N {
		d, err := fig.floor(f)
		if err != nil {
			res.Error = "floor: " + err.Error()
			return res
		}
		floor = append(floor, d)
	}
	res.Floor = percentile(floor, 50)
	return res
}

// percentile returns the p-th percentile in milliseconds: the smallest time
// that p in a hundred do not exceed.
func percentile(times []time.Duration, p int) float64 {
	sorted := slices.Sorted(slices.Values(times))
	rank := (len(sorted)*p + 99) / 100
	return float64(sorted[max(rank, 1)-1].Nanoseconds()) / 1e6
}
