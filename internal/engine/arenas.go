package engine

import (
	"sync"

	"github.com/sandtree/sandtree/internal/process/memory"
)

// arenas keeps memory for captured pages warm between checkpoints: making an
// arena costs more than a checkpoint.
type arenas struct {
	mu   sync.Mutex
	free []*memory.Arena
}

// warmArenas is how many are kept, 32 MiB each: as many checkpoints as usually
// run beside each other on a small machine.
const warmArenas = 2

func (a *arenas) take() (*memory.Arena, error) {
	a.mu.Lock()
	if n := len(a.free); n > 0 {
		x := a.free[n-1]
		a.free = a.free[:n-1]
		a.mu.Unlock()
		return x, nil
	}
	a.mu.Unlock()
	return memory.NewArena()
}

func (a *arenas) give(x *memory.Arena) {
	x.Reset()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) < warmArenas {
		a.free = append(a.free, x)
		return
	}
	x.Close()
}

func (a *arenas) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.free {
		x.Close()
	}
	a.free = nil
}
