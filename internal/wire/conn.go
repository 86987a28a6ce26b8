package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
)

// maxEvents bounds the events that wait for a slow handler.
const maxEvents = 1 << 16

// Event is something the server reports by itself.
type Event struct {
	Name string
	Data json.RawMessage
}

// Conn is the calling side of a connection. It is safe for concurrent use.
type Conn struct {
	sock *socket

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan *frame
	failed  error // why there are no more calls

	events *queue[Event]
	done   chan struct{} // closed when the read loop ended
	wg     sync.WaitGroup
}

// NewConn starts a client on a socket, which belongs to it from now on.
// onEvent, which may be nil, gets the server's events one by one, in order, on
// a goroutine of their own; it may make calls.
func NewConn(sock *net.UnixConn, onEvent func(Event)) *Conn {
	c := &Conn{
		sock:    newSocket(sock),
		pending: map[uint64]chan *frame{},
		events:  newQueue[Event](maxEvents),
		done:    make(chan struct{}),
	}
	if onEvent == nil {
		onEvent = func(Event) {}
	}
	c.wg.Go(func() { c.read() })
	c.wg.Go(func() {
		for {
			e, ok := c.events.get()
			if !ok {
				return
			}
			onEvent(e)
		}
	})
	return c
}

// Done is closed when the connection has ended. Events received before may
// still be on their way.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection; pending calls fail with [fault.Unavailable]. It
// returns without waiting for the event handler, which may be its caller.
func (c *Conn) Close() error {
	c.fail(fault.New(fault.Unavailable, "the connection was closed"))
	<-c.done
	return nil
}

// Wait returns when the connection has ended and the last event was handled.
func (c *Conn) Wait() { c.wg.Wait() }

// Call calls a verb. See the package comment for descriptors and errors.
func (c *Conn) Call(ctx context.Context, verb string, params json.RawMessage, files ...*os.File) (json.RawMessage, []*os.File, error) {
	if ctx.Err() != nil {
		return nil, nil, ended(ctx, verb)
	}
	reply := make(chan *frame, 1)
	c.mu.Lock()
	if err := c.failed; err != nil {
		c.mu.Unlock()
		return nil, nil, fmt.Errorf("%s: %w", verb, err)
	}
	c.next++
	id := c.next
	c.pending[id] = reply
	c.mu.Unlock()

	if fatal, err := c.sock.send(ctx.Done(), &message{ID: id, Verb: verb, Data: params}, files); err != nil {
		c.forget(id, reply)
		switch {
		case fatal:
			err = fault.New(fault.Unavailable, "send: %w", err)
			c.fail(err)
		case errors.Is(err, errEnded):
			return nil, nil, ended(ctx, verb)
		}
		return nil, nil, fmt.Errorf("%s: %w", verb, err)
	}
	select {
	case f := <-reply:
		return c.result(verb, f)
	case <-ctx.Done():
		c.forget(id, reply)
		go func() {
			if fatal, err := c.sock.send(c.done, &message{ID: id, Cancel: true}, nil); fatal {
				c.fail(fault.New(fault.Unavailable, "send: %w", err))
			}
		}()
		return nil, nil, ended(ctx, verb)
	}
}

// result takes a reply apart; nil stands for a connection that ended.
func (c *Conn) result(verb string, f *frame) (json.RawMessage, []*os.File, error) {
	if f == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, nil, fmt.Errorf("%s: %w", verb, c.failed)
	}
	err := f.damage
	if f.Error != nil {
		err = f.Error.err()
	}
	if err != nil {
		f.close()
		return nil, nil, err
	}
	return f.Data, f.files, nil
}

// forget gives up a call. A reply that came meanwhile is dropped, with its
// descriptors.
func (c *Conn) forget(id uint64, reply chan *frame) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
	select {
	case f := <-reply:
		if f != nil {
			f.close()
		}
	default:
	}
}

// fail ends the connection for the reason err, unless it has ended already.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return
	}
	c.failed = err
	c.sock.Close()
	c.events.end()
	for id, reply := range c.pending {
		delete(c.pending, id)
		reply <- nil
	}
}

// read takes frames until the connection ends.
func (c *Conn) read() {
	defer close(c.done)
	r := newReader(c.sock)
	for {
		f, err := r.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the peer is gone")
			}
			c.fail(fault.New(fault.Unavailable, "connection: %w", err))
			return
		}
		if err := c.dispatch(f); err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Conn) dispatch(f *frame) error {
	if f.Event != "" {
		f.close() // events carry none
		if !c.events.put(Event{Name: f.Event, Data: f.Data}) {
			return fault.New(fault.Unavailable, "connection: more than %d events wait to be handled", maxEvents)
		}
		return nil
	}
	// The reply is handed over under the lock, so that forget cannot miss it.
	c.mu.Lock()
	defer c.mu.Unlock()
	reply, ok := c.pending[f.ID]
	if !ok {
		f.close()
		return nil
	}
	delete(c.pending, f.ID)
	reply <- f
	return nil
}
