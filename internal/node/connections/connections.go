// Package connections keeps the number of a server's connections below a bound,
// so that clients who open many and use none leave descriptors for
// the rest of the process, and room for other clients.
//
// At the bound the connection that was idle for the longest time is closed for
// one that comes. Clients open another one when they need it. If none is idle, the one
// that comes is closed.
package connections

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Listener accepts connections, a number of them at a time. Its State must be the
// server's ConnState.
type Listener struct {
	net.Listener

	most int
	log  *slog.Logger

	mu     sync.Mutex
	idle   map[*conn]time.Time // since when
	busy   map[*conn]struct{}
	warned time.Time
}

// conn is a connection that says when it is closed.
type conn struct {
	net.Conn
	of *Listener
}

// warnEvery is how often the log says that the bound is reached, at most.
const warnEvery = time.Minute

// Bound makes a listener of another one that has at most so many connections open.
func Bound(l net.Listener, most int, log *slog.Logger) *Listener {
	return &Listener{Listener: l, most: max(1, most), log: log, idle: map[*conn]time.Time{}, busy: map[*conn]struct{}{}}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		x := &conn{c, l}
		victim, fits := l.add(x)
		if victim != nil {
			_ = victim.Close()
		}
		if fits {
			return x, nil
		}
		_ = c.Close()
	}
}

// add takes a connection up if there is room, or when victim is closed.
func (l *Listener) add(x *conn) (victim *conn, fits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle)+len(l.busy) >= l.most {
		if now := time.Now(); now.Sub(l.warned) > warnEvery {
			l.warned = now
			l.log.Warn("clients have as many connections as there may be", "connections", l.most, "idle", len(l.idle))
		}
		for c, since := range l.idle {
			if victim == nil || since.Before(l.idle[victim]) {
				victim = c
			}
		}
		if victim == nil {
			return nil, false
		}
		delete(l.idle, victim)
	}
	l.idle[x] = time.Now()
	return victim, true
}

// State notes what a connection does, see [http.Server].
func (l *Listener) State(c net.Conn, s http.ConnState) {
	x, ok := c.(*conn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, idle := l.idle[x]
	_, busy := l.busy[x]
	switch {
	case !idle && !busy: // it is closed
	case s == http.StateActive:
		delete(l.idle, x)
		l.busy[x] = struct{}{}
	case s == http.StateIdle:
		delete(l.busy, x)
		l.idle[x] = time.Now()
	}
}

// Close closes the connection.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.idle, c)
	delete(c.of.busy, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
