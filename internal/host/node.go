package host

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/child"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/wire"
)

const (
	// stopWithin is how long a process may take for an orderly end.
	stopWithin = 10 * time.Second
	// A node that dies is started again at once, and with a growing delay if
	// the one before it lived for less than steadyAfter too.
	steadyAfter = 10 * time.Second
	firstDelay  = 100 * time.Millisecond
	lastDelay   = 5 * time.Second
	// maxFailures bounds the starts of a daemon whose node never got ready.
	// One that was ready once is started for as long as it takes: sandboxes
	// run, and their owners want to get at them.
	maxFailures = 3
)

// node is the node of the moment.
type node struct {
	mu     sync.Mutex
	peer   *wire.Peer
	pid    int
	starts int
	ready  bool // some node was
	slept  bool // what ran is hibernated, at the daemon's end; of the goroutine that runs nodes
}

// notify tells the node of an event, or returns false. A node that comes later
// asks for everything.
func (n *node) notify(event string, v any) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peer != nil && n.peer.Notify(event, v)
}

// wasReady tells whether some node was ready once.
func (n *node) wasReady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

// runNodes keeps a node running until ctx ends. It gives up only if none was
// ever ready.
func (h *host) runNodes(ctx context.Context) error {
	failures, delay := 0, time.Duration(0)
	for {
		began := time.Now()
		reason, err := h.runNode(ctx)
		if ctx.Err() != nil {
			return h.lastNode(ctx)
		}
		if !h.node.wasReady() {
			if err != nil {
				return err
			}
			if failures++; failures >= maxFailures {
				return fault.New(fault.Unavailable, "the node has died %d times before it was ready; the last one %s", failures, reason).
					WithHint("its messages stand above this one")
			}
		}
		if time.Since(began) > steadyAfter {
			delay = 0
		}
		if err != nil {
			h.log.Error("the node cannot be started; trying again", "error", err, "in", delay)
		} else {
			h.log.Error("the node died; starting another", "reason", reason, "in", delay)
		}
		select {
		case <-ctx.Done():
			return h.lastNode(ctx)
		case <-time.After(delay):
		}
		delay = min(max(2*delay, firstDelay), lastDelay)
	}
}

// runNode runs one node until it ends, or ctx does. reason says how it ended.
func (h *host) runNode(ctx context.Context) (reason string, err error) {
	ours, theirs, err := wire.Pair()
	if err != nil {
		return "", err
	}
	defer theirs.Close()
	sock, err := wire.Open(ours)
	if err != nil {
		return "", err
	}
	c, err := h.reaper.Start(child.Spec{
		Path:         h.cfg.Executable,
		Args:         []string{"sandtree", "node"},
		Env:          os.Environ(),
		Files:        []*os.File{theirs, h.listener, h.held},
		Unprivileged: true,
		ID:           h.cfg.NodeID,
	})
	if err != nil {
		sock.Close()
		return "", err
	}
	theirs.Close() // so that the peer sees the end
	peer := wire.NewPeer(sock, h.verbs, h.log)
	h.node.set(peer, c.PID())
	defer h.node.set(nil, 0)

	// Calls of this node go on while it ends in order.
	serving, cut := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := peer.Serve(serving); err != nil && serving.Err() == nil {
			h.log.Error("node", "error", err)
		}
	}()
	defer func() { cut(); <-served }()

	select {
	case <-c.Done():
	case <-served: // a node that closed its connection is of no use
		stop(c)
	case <-ctx.Done():
		h.hibernate(c)
		stop(c)
	}
	return c.Reason(), nil
}

// lastNode hibernates what runs, by another node, if the one before has died before
// it had.
func (h *host) lastNode(ctx context.Context) error {
	for try := 0; try < maxFailures && !h.node.slept && h.node.wasReady() && h.mayHibernate() && len(h.families.running()) > 0; try++ {
		if _, err := h.runNode(ctx); err != nil {
			return err
		}
	}
	return nil
}

// mayHibernate reports whether sandboxes are to be hibernated.
func (h *host) mayHibernate() bool {
	select {
	case <-h.hurry:
		return false
	default:
		return h.cfg.HibernateWithin > 0
	}
}

// hibernate has the node put to sleep what runs, and end. It returns when that is
// done, takes too long, or is not to be waited for any more.
func (h *host) hibernate(c *child.Child) {
	within := h.cfg.HibernateWithin
	if !h.mayHibernate() {
		return
	}
	if !h.node.notify(control.EventStopping, control.Stopping{WithinNS: within.Nanoseconds()}) {
		return
	}
	late := time.NewTimer(within + stopWithin)
	defer late.Stop()
	select {
	case <-c.Done():
		h.node.slept = c.Reason() == "exited with status 0"
	case <-h.hurry:
	case <-late.C:
		h.node.slept = true // as far as it came
		h.log.Error("the node does not end in time; what it has not hibernated yet comes back at its last durable checkpoint")
	}
}

// stop ends a child in order if it can, and returns when it has ended.
func stop(c *child.Child) {
	c.Signal(unix.SIGTERM)
	late := time.AfterFunc(stopWithin, func() { c.Signal(unix.SIGKILL) })
	defer late.Stop()
	<-c.Done()
}

func (n *node) set(p *wire.Peer, pid int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peer, n.pid = p, pid
	if p != nil {
		n.starts++
	}
}
