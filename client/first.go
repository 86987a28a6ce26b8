package client

import (
	"net"
	"sync"
	"time"
)

// first is the connection that showed that a daemon is there, until the first
// request takes it. The daemon gives up connections on which nothing is asked, so
// one that has waited for long is not used.
type first struct {
	mu   sync.Mutex
	conn net.Conn // nil: taken or closed
	made time.Time
}

// patience is how long such a connection may have waited: half of what the daemon
// allows.
const patience = 5 * time.Second

func newFirst(conn net.Conn) *first { return &first{conn: conn, made: time.Now()} }

// take returns the connection, once, if it may be used at a time.
func (f *first) take(now time.Time) net.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	conn := f.conn
	f.conn = nil
	if conn != nil && now.Sub(f.made) > patience {
		_ = conn.Close()
		return nil
	}
	return conn
}

// close closes a connection that nobody has taken.
func (f *first) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		_ = f.conn.Close()
		f.conn = nil
	}
}
