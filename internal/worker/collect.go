package worker

import (
	"context"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
)

// collector gives back the space of removed records, some time after the last
// removal: they come in groups, and a collection looks at everything.
type collector struct {
	wake chan struct{}
	done chan struct{}
	end  context.CancelFunc
}

const (
	collectAfter  = 2 * time.Second  // the last removal
	collectWithin = 20 * time.Second // of the first one, however many follow
	collectHeld   = 30 * time.Second // after one that had to leave something to the next
	collectEvery  = 10 * time.Minute // in any case: a killed worker leaves something
	// collectPart is how much of the time collections take at most, as a divisor.
	collectPart = 10
)

func (c *collector) start(w *Worker) {
	c.wake, c.done = make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go func() {
		defer close(c.done)
		timer := time.NewTimer(collectEvery)
		var first, rest time.Time // the first removal since; until when it may not run again
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
				if first.IsZero() {
					first = time.Now()
				}
				timer.Reset(due(time.Now(), first, rest))
				continue
			case <-timer.C:
			}
			first = time.Time{}
			begin := time.Now()
			got, err := w.repo.Collect(ctx)
			rest = time.Now().Add(time.Since(begin) * (collectPart - 1))
			next := collectEvery
			switch {
			case err == nil:
				if got.Bytes > 0 {
					w.log.Info("space of removed checkpoints was freed", "bytes", got.Bytes)
				}
				if got.Held > 0 {
					next = collectHeld
				}
			case ctx.Err() != nil, fault.Is(err, fault.Unsupported):
			default:
				w.log.Error("free the space of removed checkpoints", "error", err)
			}
			timer.Reset(next)
		}
	}()
}

// due is how long a collection waits when something was removed. first is when the
// first of what it is to free was, and it does not run again before rest.
func due(now, first, rest time.Time) time.Duration {
	return max(min(collectAfter, first.Add(collectWithin).Sub(now)), rest.Sub(now), 0)
}

// want says that something was removed.
func (c *collector) want() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *collector) stop() {
	c.end()
	<-c.done
}
