package wire

import "sync"

// queue hands values from goroutines that must not wait to one that may be
// slow. It is bounded: putting into a full queue fails.
type queue[T any] struct {
	mu    sync.Mutex
	ready sync.Cond
	items []T
	limit int
	ended bool
}

func newQueue[T any](limit int) *queue[T] {
	q := &queue[T]{limit: limit}
	q.ready.L = &q.mu
	return q
}

// put adds a value. It returns false if the queue is full or has ended.
func (q *queue[T]) put(v T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || len(q.items) >= q.limit {
		return false
	}
	q.items = append(q.items, v)
	q.ready.Signal()
	return true
}

// get waits for a value. It returns false when the queue has ended and is
// empty.
func (q *queue[T]) get() (v T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.ended {
		q.ready.Wait()
	}
	if len(q.items) == 0 {
		return v, false
	}
	v = q.items[0]
	q.items = q.items[1:]
	return v, true
}

// end lets get return false once the queue is empty.
func (q *queue[T]) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.ready.Broadcast()
}
