package bench

import (
	"context"
	"errors"

	"github.com/sandtree/sandtree/internal/cli/bench/peer"
	"github.com/sandtree/sandtree/internal/cli/bench/quantile"
)

// Peers measures the peers that are installed. One that fails has its Error
// set. OnStart, if set, is called when one begins.
func Peers(ctx context.Context, cfg peer.Config, onStart func(name string)) []Result {
	var results []Result
	for _, p := range peer.All {
		if ctx.Err() != nil {
			break
		}
		if onStart != nil {
			onStart(p.Name)
		}
		figures, err := p.Measure(ctx, cfg)
		if errors.Is(err, peer.ErrAbsent) {
			continue
		}
		if err != nil {
			results = append(results, Result{Name: p.Name, Error: err.Error()})
			continue
		}
		for _, f := range figures {
			results = append(results, Result{
				Name: f.Name, About: f.About, N: len(f.Took),
				P50: quantile.MS(f.Took, 50), P95: quantile.MS(f.Took, 95), P99: quantile.MS(f.Took, 99),
			})
		}
	}
	return results
}
