package worker

import (
	"context"
	"os"
	"sync"

	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/wire"
)

// awaiting counts the work that somebody waits for: a sandbox that wakes or is put to
// sleep, an export. While there is any, the worker has everybody's priority.
type awaiting struct {
	background, foreground func() error // only a matter of speed

	mu sync.Mutex
	n  int
}

func newAwaiting() *awaiting {
	return &awaiting{background: func() error { return sched.Background(lowest) }, foreground: sched.Foreground}
}

// begin is to be called before such work, and what it returns after it.
func (a *awaiting) begin() (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n++; a.n == 1 {
		_ = a.foreground()
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.n--; a.n == 0 {
			_ = a.background()
		}
	}
}

// handleAwaited is [wire.Handle] for a verb whose caller keeps somebody waiting.
func handleAwaited[Req, Resp any](w *Worker, m *wire.Mux, verb string, h func(ctx context.Context, req Req, files []*os.File) (Resp, []*os.File, error)) {
	wire.Handle(m, verb, func(ctx context.Context, req Req, files []*os.File) (Resp, []*os.File, error) {
		defer w.awaiting.begin()()
		return h(ctx, req, files)
	})
}
