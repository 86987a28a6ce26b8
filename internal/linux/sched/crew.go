package sched

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Crew is a set of OS threads that wait for something urgent to be done beside
// their caller. They wait in the kernel with real-time priority, so that on a
// busy machine they begin within microseconds. A new goroutine would not: the
// threads that the runtime looks for work with are ordinary ones. The runtime
// must have more processors than its urgent threads use; see [SpareProcessors].
//
// Its methods are safe for use by many goroutines.
type Crew struct {
	mu     sync.Mutex
	idle   []*hand
	closed bool
	all    sync.WaitGroup
}

// hand is one thread. The two descriptors are eventfds.
type hand struct {
	begin, done int

	mu  sync.Mutex // tells the race detector what the eventfds order
	job func() error
	err error
}

// idleHands is how many wait at most: a stop uses three.
const idleHands = 8

// SpareProcessors has the runtime run more threads than the machine has
// processors: what waits in a system call can go on at once when that returns.
func SpareProcessors() { runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), runtime.NumCPU()+idleHands/2)) }

// Prepare has n threads wait, if they can be had.
func (c *Crew) Prepare(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.idle) < n && !c.closed {
		h, err := c.start()
		if err != nil {
			return
		}
		c.idle = append(c.idle, h)
	}
}

// Beside runs f on one of the threads. Outcome waits for what it returns, and must be
// called once.
func (c *Crew) Beside(f func() error) (outcome func() error) {
	h, err := c.take()
	if err != nil { // out of descriptors, or closed
		done := make(chan error, 1)
		go func() { done <- Urgently(f) }()
		return func() error { return <-done }
	}
	h.mu.Lock()
	h.job = f
	h.mu.Unlock()
	signal(h.begin)
	return func() error {
		await(h.done)
		h.mu.Lock()
		err := h.err
		h.mu.Unlock()
		c.give(h)
		return err
	}
}

// Close ends the threads, when what they do is done and its outcome was taken.
func (c *Crew) Close() {
	c.mu.Lock()
	c.closed = true
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for _, h := range idle {
		h.end()
	}
	c.all.Wait()
}

func (c *Crew) take() (*hand, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("closed")
	}
	if k := len(c.idle); k > 0 {
		h := c.idle[k-1]
		c.idle = c.idle[:k-1]
		return h, nil
	}
	return c.start()
}

func (c *Crew) give(h *hand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) == idleHands {
		h.end()
		return
	}
	c.idle = append(c.idle, h)
}

// start starts a thread. The crew's lock is held.
func (c *Crew) start() (*hand, error) {
	h := &hand{}
	var err error
	if h.begin, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	if h.done, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		_ = unix.Close(h.begin)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	c.all.Add(1)
	go func() {
		defer c.all.Done()
		h.run()
	}()
	return h, nil
}

// end has an idle thread end.
func (h *hand) end() { signal(h.begin) }

func (h *hand) run() {
	// Never unlocked: the thread ends with the goroutine, and its priority with it.
	runtime.LockOSThread()
	defer unix.Close(h.begin)
	defer unix.Close(h.done)
	tid := unix.Gettid()
	for {
		_ = realtime(tid, besidePriority, true) // where the kernel refuses, it only begins later
		await(h.begin)
		h.mu.Lock()
		f := h.job
		h.job = nil
		h.mu.Unlock()
		if f == nil {
			return
		}
		end := time.AfterFunc(UrgentTime, func() { Set(tid, Attr{Policy: Other}) })
		err := f()
		end.Stop()
		h.mu.Lock()
		h.err = err
		h.mu.Unlock()
		signal(h.done)
	}
}

// signal adds one to an eventfd, which never blocks here.
func signal(fd int) {
	one := [8]byte{1}
	_, _ = unix.Write(fd, one[:]) // in the machine's order: x86-64 is little endian
}

// await waits until an eventfd is signalled, and takes that back.
func await(fd int) {
	var b [8]byte
	for {
		if _, err := unix.Read(fd, b[:]); err != unix.EINTR {
			return
		}
	}
}
