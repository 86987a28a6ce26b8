package client

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"
)

// dialTime is how long [Dial] waits for a daemon that other clients keep busy.
const dialTime = 10 * time.Second

// dial connects to a socket. While more clients wait to be taken than the
// daemon's queue holds (EAGAIN, connect(2)), it tries again until ctx ends: the kernel has
// no notice of room in it.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		conn, err := d.DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// dialFirst connects to a daemon, or says why that cannot be done.
func dialFirst(socket string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTime)
	defer cancel()
	conn, err := dial(ctx, socket)
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return nil, &Error{
			Kind: Exhausted, Message: "the daemon at " + socket + " takes no more clients: " + reason(err),
			Hint: "too many connect at a time; try again",
		}
	case err != nil:
		return nil, &Error{
			Kind: Unavailable, Message: "no daemon answers at " + socket + ": " + reason(err),
			Hint: "start it with: sandtree serve",
		}
	}
	return conn, nil
}
