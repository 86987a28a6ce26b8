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
	ready  []readyChunk
	limit  int // bytes of all chunks that Alloc goes up to; 0: none
}

// readyChunk is one that comes next, touched ahead so far.
type readyChunk struct {
	b    []byte
	warm int
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
	if len(a.ready) > 0 {
		a.chunks, a.used, a.warm = append(a.chunks, a.ready[0].b), 0, a.ready[0].warm
		a.ready = a.ready[1:]
		return nil
	}
	b, err := newChunk()
	if err != nil {
		return err
	}
	a.chunks, a.used, a.warm = append(a.chunks, b), 0, 0
	return nil
}

func newChunk() ([]byte, error) {
	b, err := unix.Mmap(-1, 0, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("memory for captured pages: %w", err)
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // fewer faults; without it only slower
	return b, nil
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

// Warm populates what comes next, up to n bytes, as far as the limit lets it: the first
// touch of memory takes longer than copying into it.
func (a *Arena) Warm(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.chunks[len(a.chunks)-1]
	a.warm = touch(last, a.warm, a.used+n)
	n -= chunkSize - a.used
	for i := 0; n > 0; i, n = i+1, n-chunkSize {
		if a.limit > 0 && (len(a.chunks)+i+1)*chunkSize > a.limit {
			return nil
		}
		if i == len(a.ready) {
			b, err := newChunk()
			if err != nil {
				return err
			}
			a.ready = append(a.ready, readyChunk{b: b})
		}
		a.ready[i].warm = touch(a.ready[i].b, a.ready[i].warm, n)
	}
	return nil
}

// touch populates a chunk from one offset up to another, and returns how far it is populated.
func touch(chunk []byte, from, to int) int {
	for to = min(to, len(chunk)); from < to; from += pageSize {
		chunk[from] = 0
	}
	return from
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
	for _, c := range a.ready {
		_ = unix.Munmap(c.b)
	}
	a.chunks, a.ready, a.used, a.limit = a.chunks[:1], nil, 0, 0
}

// Close gives all memory back.
func (a *Arena) Close() {
	a.Reset()
	_ = unix.Munmap(a.chunks[0])
	a.chunks = nil
}
