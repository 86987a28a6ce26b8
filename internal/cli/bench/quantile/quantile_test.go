package quantile_test

import (
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/cli/bench/quantile"
)

func TestMS(t *testing.T) {
	var times []time.Duration
	for i := 100; i >= 1; i-- {
		times = append(times, time.Duration(i)*time.Millisecond)
	}
	for p, want := range map[int]float64{50: 50, 95: 95, 99: 99, 100: 100} {
		if got := quantile.MS(times, p); got != want {
			t.Errorf("p%d = %v, want %v", p, got, want)
		}
	}
	if got := quantile.MS(times[:1], 50); got != 100 {
		t.Errorf("of one: %v", got)
	}
	if got := quantile.MS(nil, 50); got != 0 {
		t.Errorf("of none: %v", got)
	}
}
