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
	collectAfter = 2 * time.Second  // the last removal
	collectEvery = 10 * time.Minute // in any case: a killed worker leaves something
)

func (c *collector) start(w *Worker) {
	c.wake, c.done = make(chan struct{}, 1), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	go func() {
		defer close(c.done)
		timer := time.NewTimer(collectEvery)
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.wake:
				timer.Reset(collectAfter)
				continue
			case <-timer.C:
			}
			got, err := w.repo.Collect(ctx)
			switch {
			case err == nil:
				if got.Bytes > 0 {
					w.log.Info("space of removed checkpoints was freed", "bytes", got.Bytes)
				}
			case ctx.Err() != nil, fault.Is(err, fault.Unsupported):
			default:
				w.log.Error("free the space of removed checkpoints", "error", err)
			}
			timer.Reset(collectEvery)
		}
	}()
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
