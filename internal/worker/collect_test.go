package worker

import (
	"testing"
	"time"
)

// However many removals follow each other, and however long collections take, one
// comes.
func TestCollectionsComeUnderConstantRemovals(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name        string
		first, rest time.Duration // before and after now
		want        time.Duration
	}{
		{"the first removal", 0, 0, collectAfter},
		{"one of many", -5 * time.Second, 0, collectAfter},
		{"the last that is waited for", -collectWithin + time.Second, 0, time.Second},
		{"long ago", -time.Minute, 0, 0},
		{"after a collection that took long", -time.Minute, 40 * time.Second, 40 * time.Second},
	} {
		if got := due(now, now.Add(c.first), now.Add(c.rest)); got != c.want {
			t.Errorf("%s: due in %v, want %v", c.name, got, c.want)
		}
	}
}
