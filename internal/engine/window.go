package engine

import (
	"runtime/debug"
	"sync"
)

// window keeps the garbage collector away while processes stand: a collection
// that begins between stop and resume makes them stand tens of milliseconds.
type window struct {
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
	}
}

func (w *window) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open--; w.open == 0 {
		debug.SetGCPercent(w.was)
	}
}
