package engine

import (
	"runtime/debug"
	"sync"

	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// window keeps the garbage collector away while processes stand: a collection
// that begins between stop and resume makes them stand tens of milliseconds. The
// worker stands still meanwhile, too.
type window struct {
	gate *worker.Gate // nil: there is no worker
	mu   sync.Mutex
	open int
	was  int
}

// enter begins a time without collections, and leave ends it. They may nest.
func (w *window) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open++; w.open == 1 {
		w.was = debug.SetGCPercent(-1)
		if w.gate != nil {
			w.gate.Shut()
		}
	}
}

func (w *window) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open--; w.open == 0 {
		if w.gate != nil {
			w.gate.Open()
		}
		debug.SetGCPercent(w.was)
	}
}
