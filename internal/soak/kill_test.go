package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// backWithin is how long the daemon may take to serve again after a kill.
const backWithin = 90 * time.Second

// through repeats a call whose connection a death cut off. Whether the
// call that was cut off was done is not known, so it must be one that may be
// done twice.
func through(ctx context.Context, call func() error) error {
	for begin := time.Now(); ; {
		err := call()
		if !cutOff(err) || ctx.Err() != nil || time.Since(begin) > backWithin {
			return err
		}
		time.Sleep(20 * time.Millisecond) // until the next one listens
	}
}

// cutOff reports whether an error is the connection's, or a dead supervisor's,
// not an answer.
func cutOff(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && !connect.IsWireError(ce) || client.KindOf(err) == client.Unavailable
}

// disaster is a way to end a part of the daemon, after which sandboxes are not
// what they were.
type disaster string

const (
	supervisorKilled disaster = "supervisor killed"
	hostKilled       disaster = "host killed"
	stopped          disaster = "stopped" // in order: nothing may be lost
)

// disasters are what has happened so far.
type disasters struct {
	d *testdaemon.Daemon

	mu      sync.Mutex
	changed *sync.Cond
	under   bool // one is under way
	list    []disaster
	struck  chan struct{} // closed by the next one
	node    int           // how often the node was killed: that loses nothing
}

func newDisasters(d *testdaemon.Daemon) *disasters {
	k := &disasters{d: d, struck: make(chan struct{})}
	k.changed = sync.NewCond(&k.mu)
	return k
}

// calm waits until none is under way, and returns how many there were.
func (k *disasters) calm() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.under {
		k.changed.Wait()
	}
	return len(k.list)
}

// since are those after the first n.
func (k *disasters) since(n int) []disaster {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.list[n:]
}

// next is closed when the next one strikes.
func (k *disasters) next() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.struck
}

// strike lets one happen, in the middle of what is under way; what is about to
// begin waits.
func (k *disasters) strike(how disaster, r *rand.Rand) error {
	k.mu.Lock()
	for k.under {
		k.changed.Wait()
	}
	k.under = true
	k.list = append(k.list, how)
	k.mu.Unlock()
	time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
	var err error
	switch how {
	case supervisorKilled:
		err = k.kill("supervisor")
	case hostKilled:
		err = k.d.Restart(unix.SIGKILL)
	case stopped:
		err = k.d.Restart(unix.SIGTERM)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.under = false
	close(k.struck)
	k.struck = make(chan struct{})
	k.changed.Broadcast()
	return err
}

func (k *disasters) kill(part string) error {
	for _, pid := range k.d.Parts(part) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill the %s: %w", part, err)
		}
	}
	return nil
}

// killNode kills the node a little later, in the middle of what goes on then.
func (k *disasters) killNode(r *rand.Rand) error {
	time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	k.mu.Lock()
	k.node++
	k.mu.Unlock()
	return k.kill("node")
}
