package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// interrupt is the cause of a context that a signal has ended.
type interrupt struct{ signal unix.Signal }

func (i *interrupt) Error() string {
	if i.signal == unix.SIGINT {
		return "interrupted"
	}
	return "ended by " + unix.SignalName(i.signal)
}

// interruptible makes a context that the first SIGINT or SIGTERM ends; its cause
// is an interrupt. A second one ends this process, unless somebody else listens:
// commands that hand signals on to a sandbox, and the daemon, do.
func interruptible(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGINT, unix.SIGTERM)
	go func() {
		select {
		case s := <-caught:
			signal.Stop(caught)
			if n, ok := s.(unix.Signal); ok {
				cancel(&interrupt{n})
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		cancel(nil)
	}
}

// nameInterrupt gives the error of a command that a signal has ended a text for
// readers, and notes the signal.
func (inv *invocation) nameInterrupt(ctx context.Context, err error) error {
	var why *interrupt
	if err == nil || !errors.As(context.Cause(ctx), &why) || kindOf(err) != fault.Canceled {
		return err
	}
	inv.diesOf = why.signal
	if fault.Is(err, fault.Canceled) {
		return err // it says more
	}
	return fault.New(fault.Canceled, "%w", why)
}

// dieInterrupted ends this process by the signal that ended its command, if one
// did: a shell that sees that ends its loop or script, too (WIFSIGNALED).
func (inv *invocation) dieInterrupted() {
	if inv.diesOf == 0 {
		return
	}
	signal.Reset(inv.diesOf)
	// To this thread: another one would take it while this one exits. It returns
	// if this process was started with the signal ignored.
	runtime.LockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), inv.diesOf)
}
