// Package quantile tells how times are distributed.
package quantile

import (
	"slices"
	"time"
)

// MS is the p-th percentile in milliseconds: the smallest time that p in a
// hundred do not exceed. Of no times it is 0.
func MS(times []time.Duration, p int) float64 {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	rank := (len(sorted)*p + 99) / 100
	return float64(sorted[max(rank, 1)-1].Nanoseconds()) / 1e6
}
