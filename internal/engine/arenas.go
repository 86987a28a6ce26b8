package engine

import (
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/process/memory"
)

// arenas keeps memory for captured pages warm between checkpoints: making an
// arena costs more than a checkpoint.
type arenas struct {
	mu   sync.Mutex
	free []*memory.Arena
	cool *time.Timer // gives back those beyond warmArenas, once they have not been used for a while
}

// warmArenas is how many are kept, up to 32 MiB each: as many checkpoints as usually
// run beside each other on a small machine. As many as one body's checkpoints that
// follow one another quickly use are kept for coolAfter.
const (
	warmArenas = 2
	hotArenas  = mostDeferred + 2
	coolAfter  = 20 * time.Second
)

// take returns one of which so many bytes are warm.
func (a *arenas) take(warm int) (x *memory.Arena, err error) {
	a.mu.Lock()
	if n := len(a.free); n > 0 {
		x = a.free[n-1]
		a.free = a.free[:n-1]
	}
	a.mu.Unlock()
	if x == nil {
		if x, err = memory.NewArena(); err != nil {
			return nil, err
		}
	}
	return x, x.Warm(warm)
}

// toWarm is how much of an arena is made warm for a checkpoint: all of it, or soon
// after another one that took so many bytes what one like that takes.
func toWarm(soon bool, took int) int {
	const slack = 4 << 20
	if soon {
		return min(took+took/4+slack, memory.ArenaSize)
	}
	return memory.ArenaSize
}

func (a *arenas) give(x *memory.Arena) {
	x.Reset()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.free) >= hotArenas {
		x.Close()
		return
	}
	a.free = append(a.free, x)
	if len(a.free) <= warmArenas {
		return
	}
	if a.cool == nil {
		a.cool = time.AfterFunc(coolAfter, func() { a.trim(warmArenas) })
	} else {
		a.cool.Reset(coolAfter)
	}
}

// trim gives back what is beyond the first so many.
func (a *arenas) trim(to int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.free) > to {
		a.free[len(a.free)-1].Close()
		a.free = a.free[:len(a.free)-1]
	}
}

func (a *arenas) close() {
	a.mu.Lock()
	if a.cool != nil {
		a.cool.Stop()
	}
	a.mu.Unlock()
	a.trim(0)
}
