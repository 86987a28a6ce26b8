package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/tracee"
)

// queueEmpty closes what a stub holds besides its own. Batches that count on
// the numbers of descriptors begin with it, since one that failed may have left
// some, and end with it.
func queueEmpty(b *tracee.Batch) { b.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0) }

// queueReceive queues the receipt of n descriptors, which become the numbers
// from 0. Nothing that can fail may come before it.
func queueReceive(b *tracee.Batch, n int) {
	queueEmpty(b)
	b.ReceiveFDs(n)
}

// stub is what runs batches: a seed or a PID 1.
type stub interface {
	DoReceive(b *tracee.Batch, n int, fds ...int) ([]int, error)
}

// doAndTidy runs a batch that leaves descriptors open in a stub, and closes
// them, whether the batch succeeds or not. Batches of others may run in
// between.
func doAndTidy(s stub, b *tracee.Batch, n int, fds ...int) ([]int, error) {
	return doAnd(s, queueEmpty, b, n, fds...)
}

// doAnd runs a batch, and what tidy queues behind it, whether the batch succeeds or not.
func doAnd(s stub, tidy func(*tracee.Batch), b *tracee.Batch, n int, fds ...int) ([]int, error) {
	tidy(b)
	got, err := s.DoReceive(b, n, fds...)
	if err == nil {
		return got, nil
	}
	after := tracee.NewBatch()
	tidy(after)
	if _, e := s.DoReceive(after, 0); e != nil {
		return nil, fmt.Errorf("%w; then: %w", err, e)
	}
	return nil, err
}
