package programs_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/sandtree/sandtree/client"
)

// driver is the connection to a program's driver in one sandbox.
type driver struct {
	a     *client.Attachment
	lines *bufio.Scanner
	ended chan error

	mu   sync.Mutex
	said bytes.Buffer // its standard error

}

// talk begins a conversation over an attachment.
func talk(a *client.Attachment) *driver {
	r, w := io.Pipe()
	d := &driver{a: a, lines: bufio.NewScanner(r), ended: make(chan error, 1)}
	go func() {
		end, err := a.Copy(client.Stdio{Out: w, Err: d})
		if err == nil {
			err = fmt.Errorf("the driver ended with %d %s", end.ExitCode, end.Reason)
		}
		d.ended <- err
		_ = w.CloseWithError(err)
	}()
	return d
}

// Write takes what the driver says beside its replies.
func (d *driver) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.Write(p)
}

// complaints returns what the driver has said beside its replies.
func (d *driver) complaints() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.TrimSpace(d.said.String())
}

// reply waits for the reply to request number n. Earlier ones are a log that
// is shown again.
func (d *driver) reply(n int) (string, error) {
	prefix := fmt.Sprintf("%d ", n)
	for d.lines.Scan() {
		if said, ok := strings.CutPrefix(d.lines.Text(), prefix); ok {
			return said, nil
		}
	}
	return "", fmt.Errorf("%w; it said: %s", <-d.ended, d.complaints())
}

// requests numbers the requests to all drivers, so that a copy's are not taken
// for those of what it was copied from.
var requests struct {
	sync.Mutex
	n int
}

func (d *driver) ask(what string) (string, error) {
	requests.Lock()
	requests.n++
	n := requests.n
	requests.Unlock()
	if _, err := fmt.Fprintf(d.a, "%d %s\n", n, what); err != nil {
		return "", fmt.Errorf("%w; the driver said: %s", err, d.complaints())
	}
	said, err := d.reply(n)
	if err != nil {
		return "", err
	}
	verdict, rest, _ := strings.Cut(said, " ")
	if verdict != "ok" {
		return "", fmt.Errorf("asked to %s it says %s: %s", what, verdict, strings.ReplaceAll(rest, `\n`, "\n"))
	}
	return rest, nil
}

// mark lets the program keep a name.
func (d *driver) mark(name string) error {
	_, err := d.ask("mark " + name)
	return err
}

// keeps asks whether the program is whole and has gone on, and whether it keeps
// these names and no other.
func (d *driver) keeps(want ...string) error {
	said, err := d.ask("check")
	if err != nil {
		return err
	}
	got := strings.Fields(said)
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		return fmt.Errorf("it keeps %v, where %v is right", got, want)
	}
	return nil
}

// start runs a driver in a sandbox and waits until the load goes.
func start(ctx context.Context, sb *client.Sandbox, cmd client.Command) (*driver, error) {
	a, err := sb.Exec(ctx, cmd)
	if err != nil {
		return nil, err
	}
	d := talk(a)
	if _, err := d.reply(0); err != nil {
		return nil, err
	}
	return d, nil
}

// join finds the driver in a copy of its sandbox.
func join(ctx context.Context, sb *client.Sandbox) (*driver, error) {
	all, err := sb.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	running := slices.DeleteFunc(all, func(s *client.Session) bool { return s.Ended })
	if len(running) != 1 {
		return nil, fmt.Errorf("%d sessions run in the copy, where one is right", len(running))
	}
	a, err := running[0].Attach(ctx, client.AttachOptions{})
	if err != nil {
		return nil, err
	}
	return talk(a), nil
}
