package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// nodeBackWithin is how long the node may take to serve again after a kill.
const nodeBackWithin = 30 * time.Second

// through repeats a call whose connection the node's death cut off. Whether the
// call that was cut off was done is not known, so it must be one that may be
// done twice.
func through(ctx context.Context, call func() error) error {
	for begin := time.Now(); ; {
		err := call()
		if !cutOff(err) || ctx.Err() != nil || time.Since(begin) > nodeBackWithin {
			return err
		}
		time.Sleep(20 * time.Millisecond) // until the next node listens
	}
}

// cutOff reports whether an error is the connection's, not the daemon's answer.
func cutOff(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && !connect.IsWireError(ce) || client.KindOf(err) == client.Unavailable
}

// kills ends the node from time to time, as a crash does.
type kills struct {
	d    *testdaemon.Daemon
	node int // how often it was killed
}

// kill kills the node a little later, in the middle of what goes on then.
func (k *kills) kill(r *rand.Rand) {
	time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	for _, pid := range k.d.Parts("node") {
		if unix.Kill(pid, unix.SIGKILL) == nil {
			k.node++
		}
	}
}
