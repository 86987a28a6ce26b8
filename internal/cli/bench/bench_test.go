package bench

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	var times []time.Duration
	for i := 100; i >= 1; i-- {
		times = append(times, time.Duration(i)*time.Millisecond)
	}
	for p, want := range map[int]float64{50: 50, 95: 95, 99: 99, 100: 100} {
		if got := percentile(times, p); got != want {
			t.Errorf("p%d = %v, want %v", p, got, want)
		}
	}
	if got := percentile(times[:1], 50); got != 100 {
		t.Errorf("of one: %v", got)
	}
}

func TestFloors(t *testing.T) {
	f, err := openFloors(t.Context(), Config{HeapBytes: 8 << 20, DirtyBytes: 1 << 20, DirtyFiles: 3, Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for _, fig := range figures {
		for range 2 {
			d, err := fig.floor(f)
			if err != nil || d <= 0 || d > 10*time.Second {
				t.Errorf("%s: %v, %v", fig.name, d, err)
			}
		}
	}
}
