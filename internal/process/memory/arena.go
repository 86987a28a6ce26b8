package memory

import (
	"fmt"
	"math"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	pageSize  = 4096
	chunkSize = 32 << 20
)

// Arena is memory that captured pages are copied into. What is to be copied is made
// room for beforehand by [Arena.Warm], since copying into memory that was never
// touched costs up to forty times as much; more chunks are added as a capture needs
// them, and given back by [Arena.Reset]. Alloc and Fits are safe for use by several
// threads beside each other.
type Arena struct {
	mu     sync.Mutex
	chunks [][]byte
	used   int // of the last chunk
	warm   int // how far the last chunk was touched
	limit  int // bytes of all chunks that Alloc goes up to; 0: none
}

// ArenaSize is how much fits into an arena that stays as it is, in bytes.
const ArenaSize = chunkSize

// Limit bounds the arena to about n bytes until the next [Arena.Reset]; it has
// its first chunk in any case.
func (a *Arena) Limit(n int64) { a.limit = int(min(n, math.MaxInt)) }

// NewArena makes an arena with one chunk of [ArenaSize].
func NewArena() (*Arena, error) {
	a := &Arena{}
	if err := a.grow(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Arena) grow() error {
	b, err := unix.Mmap(-1, 0, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("memory for captured pages: %w", err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // fewer faults; without it only slower
	a.chunks, a.used, a.warm = append(a.chunks, b), 0, 0
	return nil
}

// Fits reports whether n bytes more are within the limit.
func (a *Arena) Fits(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limit == 0 || (len(a.chunks)-1)*chunkSize+a.used+n <= a.limit
}

// Used is how much was allocated since the last [Arena.Reset], in bytes.
func (a *Arena) Used() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return (len(a.chunks)-1)*chunkSize + a.used
}

// Warm populates what comes next, up to n bytes: the first touch of memory takes
// longer than copying into it.
func (a *Arena) Warm(n int) error {
	if a.used == chunkSize {
		if err := a.grow(); err != nil {
			return err
		}
	}
	c, to := a.chunks[len(a.chunks)-1], min(a.used+n, chunkSize)
	for ; a.warm < to; a.warm += pageSize {
		c[a.warm] = 0
	}
	return nil
}

// Alloc returns up to n bytes, at least a page; n is in whole pages. Beyond the
// limit the error is of kind Exhausted.
func (a *Arena) Alloc(n int) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used == chunkSize {
		if size := (len(a.chunks) + 1) * chunkSize; a.limit > 0 && size > a.limit {
			return nil, fault.New(fault.Exhausted, "the checkpoint needs more than %d MB of memory at once, and no more is free for it", a.limit>>20).
				WithHint("end other sandboxes or remove checkpoints, or give the machine more memory")
		}
		if err := a.grow(); err != nil {
			return nil, err
		}
	}
	n = min(n, chunkSize-a.used)
	b := a.chunks[len(a.chunks)-1][a.used : a.used+n]
	a.used += n
	a.warm = max(a.warm, a.used)
	return b, nil
}

// Reset forgets all that was allocated. The first chunk stays as warm as it is.
func (a *Arena) Reset() {
	if len(a.chunks) > 1 {
		a.warm = chunkSize // it was full
	}
	for _, c := range a.chunks[1:] {
		_ = unix.Munmap(c)
	}
	a.chunks, a.used, a.limit = a.chunks[:1], 0, 0
}

// Close gives all memory back.
func (a *Arena) Close() {
	a.Reset()
	_ = unix.Munmap(a.chunks[0])
	a.chunks = nil
}
