package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// forwarded are the signals that a command without a terminal of its own gets
// as if it ran here.
var forwarded = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// streams says how an attachment meets the streams of this process.
type streams struct {
	interactive bool // this process's input goes to the session
	tty         bool // the session has a terminal
	onlooker    bool // nothing goes to the session, signals neither
	out, err    io.Writer
}

// size returns the size of the terminal on this process's output.
func (inv *invocation) size() client.Window {
	if f, ok := inv.out.(*os.File); ok {
		if cols, rows, err := term.GetSize(int(f.Fd())); err == nil {
			return client.Window{Rows: uint16(rows), Cols: uint16(cols)} //nolint:gosec // TIOCGWINSZ has 16 bits
		}
	}
	return client.Window{}
}

// checkTerminal refuses an interactive terminal session whose input is not a
// terminal: nothing could be typed into it as meant.
func (inv *invocation) checkTerminal(s streams) error {
	if s.interactive && s.tty && !onTerminal(inv.in) {
		return fault.New(fault.Invalid, "the input is not a terminal").WithHint("use exec -i, without -t, to pipe into a command")
	}
	return nil
}

// attached attaches, and gives up when ctx ends before it is done. From then
// on the attachment outlives ctx: a signal that ends other commands may be
// meant for the session.
func attached(ctx context.Context, attach func(context.Context) (*client.Attachment, error)) (*client.Attachment, error) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	a, err := attach(own)
	if err != nil {
		cancel()
	}
	stop()
	return a, err
}

// follow connects an attachment to this process's streams until the session
// ends or the user detaches. While an interactive session has this terminal,
// it is in raw mode, its size is passed on, and ctrl-p ctrl-q detaches.
// Otherwise signals are passed on.
func (inv *invocation) follow(ctx context.Context, a *client.Attachment, s streams) (client.SessionInfo, error) {
	defer func() { _ = a.Close() }()
	in := inv.in
	if s.interactive && s.tty {
		restore, err := inv.raw()
		if err != nil {
			return a.Session, err
		}
		defer restore()
		defer inv.watchSize(a)()
		in = &detachReader{src: inv.in}
	} else if !s.onlooker {
		defer forwardSignals(a)()
		// What is forwarded must not cancel this side: the session's end is
		// what ends the wait.
		ctx = context.WithoutCancel(ctx)
	}
	stop := context.AfterFunc(ctx, func() { _ = a.Close() })
	defer stop()
	if s.interactive {
		go pump(a, in)
	}
	end, err := a.Copy(client.Stdio{Out: s.out, Err: s.err, OnRebirth: func(r client.Rebirth) {
		if r.Checkpoint != "" { // else it stood still meanwhile, and nothing was lost
			inv.mark(s.tty, "rolled back to "+r.Checkpoint)
		}
	}})
	if ctx.Err() != nil {
		return end, fault.New(fault.Canceled, "left session %s, which goes on", end.ID).WithHint("come back with: sandtree attach %s", end.ID)
	}
	return end, err
}

// pump sends the input to the session. The end of the input closes the
// session's, the detach keys leave it. Errors show in the attachment's events.
func pump(a *client.Attachment, in io.Reader) {
	_, err := io.Copy(a, in)
	if d, ok := in.(*detachReader); ok && d.detached {
		_ = a.Detach()
	} else if err == nil || !errors.Is(err, io.EOF) {
		_ = a.CloseStdin()
	}
}

// mark writes a note of sandtree's own between a session's output.
func (inv *invocation) mark(tty bool, note string) {
	if tty {
		fmt.Fprintf(inv.err, "\r\n[%s]\r\n", note)
	} else if onTerminal(inv.err) {
		fmt.Fprintf(inv.err, "[%s]\n", note)
	}
}

// raw puts the terminal into raw mode and returns what undoes it.
func (inv *invocation) raw() (restore func(), err error) {
	f, ok := inv.in.(*os.File)
	if !ok {
		return func() {}, nil
	}
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, fault.New(fault.Internal, "put the terminal into raw mode: %w", err)
	}
	return func() { _ = term.Restore(int(f.Fd()), old) }, nil
}

// watchSize tells the session this terminal's size, now and when it changes,
// until the returned function is called.
func (inv *invocation) watchSize(a *client.Attachment) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGWINCH)
	changed <- unix.SIGWINCH // an attached session may have had another size
	go func() {
		for range changed {
			if w := inv.size(); w != (client.Window{}) {
				_ = a.Resize(w)
			}
		}
	}()
	return func() { signal.Stop(changed); close(changed) }
}

// forwardSignals sends this process's signals to the session until the
// returned function is called.
func forwardSignals(a *client.Attachment) (stop func()) {
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, forwarded...)
	go func() {
		for s := range caught {
			if n, ok := s.(unix.Signal); ok {
				_ = a.Signal(int(n))
			}
		}
	}()
	return func() { signal.Stop(caught); close(caught) }
}

// finish turns a session's state into what the command exits with.
func (inv *invocation) finish(end client.SessionInfo) error {
	if !end.Ended {
		inv.mark(false, "session "+end.ID+" goes on; come back with: sandtree attach "+end.ID)
		return nil
	}
	switch end.Reason {
	case "":
	case "timeout":
		fmt.Fprintf(inv.err, "sandtree: the command's time was up\n")
		return exitCode(fault.Code(fault.Deadline).Exit)
	case "lost":
		return &runtimeFailure{code: exitRuntime, err: fault.New(fault.Lost, "session %s: the sandbox was lost with its supervisor", end.ID)}
	default:
		fmt.Fprintf(inv.err, "sandtree: the command ended: %s\n", printable(end.Reason))
	}
	if end.ExitCode != 0 {
		return exitCode(end.ExitCode)
	}
	return nil
}
